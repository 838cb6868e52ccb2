"""Indexes in a cache: each built once, by one process, and never seen half built."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FORMAT = 1
"""Raised when what an index folder holds changes; older ones are then left alone and built anew."""
DESCRIPTION = "index.json"


def cache_folder() -> Path:
    """Where indexes are kept: ``AGENTGYM_CACHE``, else ``agentgym`` in the user's cache folder."""
    named = os.environ.get("AGENTGYM_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentgym"


def built_once(folder: Path, description: dict[str, object], build: Callable[[Path], None]) -> Path:
    """The folder, built if it is not there.

    Of several processes the first builds and the others wait for it. It builds beside and renames, so a folder with
    the final name is whole, whatever was killed; where locks do not work both build and one result is dropped.

    Args:
        description: kept in the folder for people who look into it.
        build: fills an empty folder.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder.with_name(folder.name + ".lock")):
        if folder.is_dir():
            return folder
        for left_by_a_killed_process in folder.parent.glob(f"{folder.name}.building-*"):
            shutil.rmtree(left_by_a_killed_process, ignore_errors=True)
        building = Path(tempfile.mkdtemp(prefix=f"{folder.name}.building-", dir=folder.parent))
        try:
            build(building)
            (building / DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")
            building.chmod(0o755)
            with suppress(OSError):  # another machine, which the lock did not stop, was quicker
                building.rename(folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return folder


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        with suppress(OSError):  # not every network file system has locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
