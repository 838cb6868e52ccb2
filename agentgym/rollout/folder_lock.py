"""A lock on the folder of a run or an evaluation, so that two processes never write it at the same time."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TextIO

from agentgym.errors import UsageError

LOCK_NAME: Final = ".lock"
_HELD: Final = (errno.EACCES, errno.EAGAIN)
_LOOK_S: Final = 0.2


@contextmanager
def locked(folder: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Lock a folder, which is created if it is missing. The operating system frees the lock when the process ends.

    A folder that contains nothing else at the end is removed.

    Args:
        wait_s: seconds to wait until another process frees the lock.

    Raises:
        UsageError: another process holds the lock; the message names it.
    """
    file = _opened(folder, time.monotonic() + wait_s)
    with file:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            with suppress(FileNotFoundError):  # the folder was deleted; the next write to it reports that
                if [path.name for path in folder.iterdir()] == [LOCK_NAME]:
                    (folder / LOCK_NAME).unlink()
                    folder.rmdir()


def writer_of(folder: Path) -> str:
    """Return the process that holds a folder's lock, as in ``process 12 on host``; empty if none does."""
    try:
        with open(folder / LOCK_NAME, encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                return _holder(file) if error.errno in _HELD else ""
    except OSError:
        pass
    return ""


def _holder(file: TextIO) -> str:
    file.seek(0)
    return file.read(200).strip() or "another process"


def _created(folder: Path) -> TextIO:
    """Create a folder and open its lock file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return open(folder / LOCK_NAME, "a+", encoding="utf-8")
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS):
            raise
        raise UsageError(
            f"{folder} cannot be written ({error.strerror}); name a folder that you may write to, such as a copy of it"
        ) from error


def _opened(folder: Path, give_up: float) -> TextIO:
    """Return the lock file, locked by this process."""
    while True:
        file = _created(folder)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                with file:
                    if time.monotonic() < give_up:
                        time.sleep(_LOOK_S)
                        continue
                    holder = _holder(file)
                raise UsageError(
                    f"{folder} is being written by {holder}; wait until it ends, or stop it first"
                ) from None
            warnings.warn(f"{folder} cannot be locked ({error.strerror}): start nothing else there", stacklevel=4)
            return file
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), (folder / LOCK_NAME).stat()):
                return file
        file.close()  # its holder has just removed the file, so other processes would not see this lock
