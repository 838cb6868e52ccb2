"""Removal of folders that untrusted code has filled, on the host and inside a sandbox.

The walk never follows links. It uses neither recursion nor long paths, since folders may be nested thousands deep. It
holds at most three file descriptors, and continues after an entry that cannot be removed.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ALL_OF_THE_OWNER = 0o700


class _Level:
    """A folder on the path of the walk: its name in the parent, its identity, and the entries left to remove."""

    def __init__(self, name: str, fd: int) -> None:
        self.name, self.identity, self.names = name, _identity(fd), os.listdir(fd)


def remove_tree(path: str) -> bool:
    """Remove a file, a link, or a folder with its content. Return True if it is gone."""
    with suppress(OSError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
        else:
            empty_folder(path)
            os.rmdir(path)
    return not os.path.lexists(path)


def empty_folder(path: str) -> None:
    """Remove the content of a folder as far as possible. A link in its place is left unchanged.

    Raises:
        OSError: the folder is missing or cannot be listed.
    """
    here = _opened(path, None)
    try:
        levels = [_Level("", here)]
        while levels:
            level = levels[-1]
            if level.names:
                name = level.names.pop()
                below = _removed_or_opened(name, here)
                if below is not None:
                    os.close(here)
                    here = below
                    levels.append(_Level(name, here))
                continue
            levels.pop()
            if levels:
                above = os.open("..", _FOLDER, dir_fd=here)
                os.close(here)
                here = above
                # the folder was moved, so its parent is not the one we came from
                if _identity(here) != levels[-1].identity:
                    return
                with suppress(OSError):
                    os.rmdir(level.name, dir_fd=here)
    finally:
        os.close(here)


def _removed_or_opened(name: str, folder: int) -> int | None:
    """Remove an entry, or return the descriptor of a folder that must be emptied first."""
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)
            return None
        with suppress(OSError):
            os.rmdir(name, dir_fd=folder)
            return None
        below = _opened(name, folder)
    except OSError:  # the entry is gone or belongs to another user; skip it
        return None
    return below


def _opened(name: str, folder: int | None) -> int:
    """Open a folder, but not a link, after giving its owner all permissions."""
    try:
        fd = os.open(name, _FOLDER, dir_fd=folder)
    except PermissionError:  # its owner, who may be this user, has removed the permissions
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.chmod(f"/proc/self/fd/{handle}", _ALL_OF_THE_OWNER)
        finally:
            os.close(handle)
        fd = os.open(name, _FOLDER, dir_fd=folder)
    with suppress(OSError):
        mode = os.fstat(fd).st_mode
        if mode & _ALL_OF_THE_OWNER != _ALL_OF_THE_OWNER:
            os.fchmod(fd, stat.S_IMODE(mode) | _ALL_OF_THE_OWNER)
    return fd


def _identity(fd: int) -> tuple[int, int]:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino
