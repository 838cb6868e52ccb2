"""Traces of jobs outside their workspace: System V objects, kernel keys, files in shared folders.

They outlive their processes, take memory, and could pass information to a later episode. Objects are removed after each
job; a reset and the worker's start and end remove everything. If the sandbox has no user of its own, its traces cannot
be distinguished from the host's, and stay.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agentgym.sandboxes.inside.files import CHUNK, empty
from agentgym.sandboxes.inside.job import become, keyctl
from agentgym.sandboxes.inside.removal import remove_tree

_IPC_RMID = 0
_KINDS = {"shm": "shmid", "msg": "msqid", "sem": "semid"}
_KEYCTL_CLEAR, _KEYCTL_GET_PERSISTENT = 7, 22
_OF_THE_PROCESS, _OF_THE_USER, _OF_THE_USER_S_SESSION = -2, -4, -5
libc = ctypes.CDLL(None, use_errno=True)


def clear_traces(settings: dict[str, Any]) -> str:
    """Remove all traces of jobs. Return a text about those that could not be removed, or an empty text."""
    if objects := clear_shared_objects(settings):
        return f"there are System V objects: {objects}"
    _as_each_user(settings, lambda: _clear_as_user(settings))
    for place in settings["writable"]:
        # reset the times of folders that belong to the worker, since times can carry information, too
        with suppress(OSError):
            os.utime(place, (0, 0))
        if left := os.listdir(place):
            return f"{os.path.join(place, left[0])} cannot be removed"
    return ""


def clear_shared_objects(settings: dict[str, object]) -> list[tuple[str, int]]:
    """Remove the System V objects of jobs. Return kind and id of those that could not be removed."""

    def remove_all() -> None:
        for kind, number in _objects(settings):
            _remove_object(kind, number)

    if not _objects(settings):
        return []
    _as_each_user(settings, remove_all)  # only the owner of an object may remove it
    return _objects(settings)


def lines_of(path: str) -> list[str]:
    """Return the lines of a file of the kernel. After every job some are read, so without the costs of ``open``."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = bytearray()
        while part := os.read(fd, CHUNK):
            data += part
    finally:
        os.close(fd)
    return data.decode().splitlines()


def _as_each_user(settings: dict[str, Any], work: Callable[[], None]) -> None:
    for user in settings["users"].values():
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                become(user)
                work()
            os._exit(0)
        os.waitpid(pid, 0)


def _clear_as_user(settings: dict[str, Any]) -> None:
    for place in settings["writable"]:
        empty(place)
        with suppress(OSError):
            os.utime(place, (0, 0))
    has_own_user = any(settings["users"].values())
    if has_own_user or settings["sweep"] == "namespace":  # otherwise these are the host's own keys
        clear_keyrings()
    for place in settings["shared"]:
        with suppress(OSError), os.scandir(place) as entries:
            mine = [entry.path for entry in entries if entry.stat(follow_symlinks=False).st_uid == os.getuid()]
            for path in mine:
                remove_tree(path)


def clear_keyrings() -> None:
    """Empty this user's keyrings in the kernel. (A session keyring ends with its processes.)"""
    persistent = keyctl(_KEYCTL_GET_PERSISTENT, -1, _OF_THE_PROCESS)
    for ring in (_OF_THE_USER, _OF_THE_USER_S_SESSION, persistent):
        if ring != -1:
            keyctl(_KEYCTL_CLEAR, ring)


def _objects(settings: dict[str, Any]) -> list[tuple[str, int]]:
    """Return kind and id of a sandbox's objects; none if it shares its user with the host."""
    own = {user[0] for user in settings["users"].values() if user is not None}
    found = []
    for kind, column in _KINDS.items():
        with suppress(OSError):
            names, *rows = (line.split() for line in lines_of(f"/proc/sysvipc/{kind}"))
            at, uid, cuid = (names.index(name) for name in (column, "uid", "cuid"))
            for row in rows:
                if settings["sweep"] == "namespace" or {int(row[uid]), int(row[cuid])} & own:
                    found.append((kind, int(row[at])))
    return found


def _remove_object(kind: str, number: int) -> None:
    if kind == "shm":
        libc.shmctl(number, _IPC_RMID, None)
    elif kind == "msg":
        libc.msgctl(number, _IPC_RMID, None)
    else:
        libc.semctl(number, 0, _IPC_RMID)
