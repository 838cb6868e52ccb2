"""Copies of a user's files in a run's folder, for commands in other folders and on other machines."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from agentgym.canonical import digest
from agentgym.errors import CorruptDataError
from agentgym.plugins import found_file, use_copies
from agentgym.rollout.journal import file_digest, own_files
from agentgym.rollout.record import read_json_object
from agentgym.siblings import files_beside

_BESIDE = " / "
FOLDER = "own_files"
"""Folder of the copies, and key of their digests in ``config.json``, which is signed."""


def keep_files(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Copy the files that a configuration names, and return the configuration with the digests of the copies.

    Modules and data beside these files are copied with them (:func:`~agentgym.siblings.files_beside`).
    """
    named = {name: found_file(Path(name)) for name in own_files(config)}
    found: dict[str, str] = {}
    for name, path in named.items():
        if not path.is_file():
            continue
        for beside, file in {"": path.resolve(), **files_beside(path.resolve())}.items():
            copy = _copy(folder, name, beside)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not (copy.exists() and copy.samefile(file)):
                shutil.copyfile(file, copy)
            found[f"{name}{_BESIDE}{beside}" if beside else name] = file_digest(file, copy.name)
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
    for key, made in kept.items():
        name, _, beside = key.partition(_BESIDE)
        copy = _copy(run, name, beside)
        if not Path(name).is_file() and file_digest(copy, named=copy.name) != made:
            raise CorruptDataError(f"{copy}, the copy of {beside or name}, is missing or was changed")
    use_copies({name: _copy(run, name) for name in kept if _BESIDE not in name})


def _copy(folder: Path, name: str, beside: str = "") -> Path:
    """Return the path of a file's copy, or of what was beside the file."""
    return folder / FOLDER / digest(name)[:8] / (beside or Path(name).name)
