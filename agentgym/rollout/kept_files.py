"""Copies of a user's files in the folder of a run or an evaluation, for commands in other folders and machines."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentgym.canonical import digest
from agentgym.errors import CorruptDataError
from agentgym.plugins import use_copies
from agentgym.rollout.journal import file_digest, named_files, own_sources
from agentgym.rollout.record import read_json_object

FOLDER = "own_files"
"""Folder of the copies, and key of their digests in ``config.json``, which is signed."""


def keep_files(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Copy the files that a configuration names, and return the configuration with the digests of the copies.

    Modules, packages and data beside them are copied, too (:func:`~agentgym.user_modules.files_beside`).
    """
    named = named_files(config)
    found: dict[str, str] = {}
    for name, source in own_sources(config).items():
        copy = _copy(folder, name, named)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not (copy.exists() and copy.samefile(source)):
            shutil.copyfile(source, copy)
        found[name] = file_digest(copy, Path(name).name)
    return config | ({FOLDER: found} if found else {})


def use_kept_files(folder: Path) -> None:
    """Use the copies of a run or an evaluation for the files that are not found from the working directory.

    Args:
        folder: folder of the run or evaluation, or of a policy on one of its suites. The caller trusts it.

    Raises:
        CorruptDataError: a copy is missing, or was changed after the run began.
    """
    run = next((one for one in (folder, *folder.absolute().parents[:2]) if (one / "config.json").is_file()), folder)
    config = read_json_object(run / "config.json")
    kept = config.pop(FOLDER, None)
    if not isinstance(kept, Mapping):
        return
    named = named_files(config)
    for name, made in kept.items():
        copy = _copy(run, name, named)
        if not Path(name).is_file() and file_digest(copy, named=Path(name).name) != made:
            raise CorruptDataError(f"{copy}, the copy of {name}, is missing or was changed")
    use_copies({name: _copy(run, name, named) for name in kept if name in named})


def _copy(folder: Path, name: str, named: Iterable[str]) -> Path:
    """Return the place of a copy. Modules lie beside the copies of the files that import them, by their own names."""
    if name in named:
        return folder / FOLDER / f"{digest(name)[:8]}-{Path(name).name}"
    parents = [Path(one).parent for one in named]
    parent = next((parent for parent in parents if Path(name).is_relative_to(parent)), Path(name).parent)
    return folder / FOLDER / Path(name).relative_to(parent)
