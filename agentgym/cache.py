"""The user's cache: folders that are expensive to make, each made once and never seen half made."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def cache_folder() -> Path:
    """Return the cache's root: ``AGENTGYM_CACHE``, else ``agentgym`` in the user's cache folder."""
    named = os.environ.get("AGENTGYM_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentgym"


def built_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return ``folder``, after building it if it is missing.

    Of several processes, the first builds and the others wait for it. The result is built beside ``folder`` and
    renamed, so a folder with the final name is complete, even after a kill. Where file locks do not work, each process
    builds and one result is kept.

    Args:
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
