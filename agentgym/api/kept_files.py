"""Copies of a user's files in an evaluation's folder, for commands in other folders and on other machines."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from agentgym.canonical import digest
from agentgym.errors import CorruptDataError
from agentgym.plugins import found_file, use_copies
from agentgym.rollout.journal import file_digest, own_files
from agentgym.rollout.record import read_json_object

FOLDER = "own_files"
"""Folder of the copies, and key of their digests in ``config.json``, which is signed."""


def keep_files(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Copy the files that a configuration names, and return the configuration with the digests of the copies.

    Modules that these files import are not copied.
    """
    named = {name: found_file(Path(name)) for name in own_files(config)}
    found = {name: file_digest(path, Path(name).name) for name, path in named.items() if path.is_file()}
    for name in found:
        (folder / FOLDER).mkdir(exist_ok=True)
        shutil.copyfile(found_file(Path(name)), _copy(folder, name))
    return config | ({FOLDER: found} if found else {})


def use_kept_files(folder: Path) -> None:
    """Use the copies of an evaluation for the files that are not found from the working directory.

    Args:
        folder: folder of the evaluation, or of a policy on one of its suites. The caller trusts it.

    Raises:
        CorruptDataError: a copy is missing, or was changed after the evaluation began.
    """
    run = next((one for one in (folder, *folder.absolute().parents[:2]) if (one / "config.json").is_file()), folder)
    kept = read_json_object(run / "config.json").get(FOLDER)
    if not isinstance(kept, dict):
        return
    for name, made in kept.items():
        if not Path(name).is_file() and file_digest(_copy(run, name), named=Path(name).name) != made:
            raise CorruptDataError(f"{_copy(run, name)}, the copy of {name}, is missing or was changed")
    use_copies({name: _copy(run, name) for name in kept})


def _copy(folder: Path, name: str) -> Path:
    return folder / FOLDER / f"{digest(name)[:8]}-{Path(name).name}"
