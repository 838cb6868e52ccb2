"""Folders and files that no process sees half-built. Those of the user's cache are expensive, and are built once."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agentgym.errors import UsageError


def cache_folder() -> Path:
    """Return the cache's root: ``AGENTGYM_CACHE``, else ``agentgym`` in the user's cache folder."""
    named = os.environ.get("AGENTGYM_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache") / "agentgym"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # as in a container that runs as a user without an entry in /etc/passwd
        return Path("/nonexistent")  # as Debian calls the home of users who have none; writing there is refused


def built_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return ``folder``, after building it if it is missing.

    If several processes call this function, the first one builds and the others wait for it. The result is built beside
    ``folder`` and then renamed, so a folder with the final name is complete, even after a kill. Where file locks do not
    work, each process builds and one result is kept.

    Args:
        build: a function that fills the empty folder it is given.

    Raises:
        UsageError: the folder does not exist, and the user may not write beside it.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.with_name(folder.name + ".lock").touch()
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS):
            raise
        raise UsageError(
            f"the cache {folder.parent} cannot be written ({error.strerror}); set AGENTGYM_CACHE to a folder of yours"
        ) from error
    with _lock(folder.with_name(folder.name + ".lock")):
        if folder.is_dir():
            return folder
        for left_by_a_killed_process in folder.parent.glob(f"{folder.name}.building-*"):
            shutil.rmtree(left_by_a_killed_process, ignore_errors=True)
        building = Path(tempfile.mkdtemp(prefix=f"{folder.name}.building-", dir=folder.parent))
        try:
            build(building)
            building.chmod(0o755)
            with suppress(OSError):  # another machine, which the lock does not reach, finished first
                building.rename(folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return folder


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Write a file beside ``path`` that replaces it at the end, so a file with the final name is complete.

    The file that is yielded has the suffix of ``path``. It is removed if the block raises.
    """
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        with suppress(OSError):  # some network file systems do not support locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
