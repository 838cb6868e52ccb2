"""System V shared memory, queues and semaphores: they outlive the processes that made them, and take memory.

Nothing that a call started outlives it, so they are removed after each job. Those of a sandbox are found by its users'
numbers, or, in a namespace of its own, are all that there are.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Any

from agentgym.sandboxes.inside.job import become

_IPC_RMID = 0
_KINDS = {"shm": "shmid", "msg": "msqid", "sem": "semid"}
libc = ctypes.CDLL(None, use_errno=True)


def clear_shared_objects(settings: dict[str, Any]) -> list[tuple[str, int]]:
    """Remove the objects that jobs made; return kind and number of those that stay."""
    for user in settings["users"].values() if _objects(settings) else ():
        pid = os.fork()  # only an object's own user may remove it
        if pid == 0:
            with suppress(BaseException):
                become(user)
                for kind, number in _objects(settings):
                    _remove(kind, number)
            os._exit(0)
        os.waitpid(pid, 0)
    return _objects(settings)


def _objects(settings: dict[str, Any]) -> list[tuple[str, int]]:
    """Return kind and number of the objects of a sandbox; none where it shares its user with the host."""
    own = {user[0] for user in settings["users"].values() if user is not None}
    found = []
    for kind, column in _KINDS.items():
        with suppress(OSError), open(f"/proc/sysvipc/{kind}") as file:
            names, *rows = (line.split() for line in file)
            at, uid, cuid = (names.index(name) for name in (column, "uid", "cuid"))
            for row in rows:
                if settings["sweep"] == "namespace" or {int(row[uid]), int(row[cuid])} & own:
                    found.append((kind, int(row[at])))
    return found


def _remove(kind: str, number: int) -> None:
    if kind == "shm":
        libc.shmctl(number, _IPC_RMID, None)
    elif kind == "msg":
        libc.msgctl(number, _IPC_RMID, None)
    else:
        libc.semctl(number, 0, _IPC_RMID)
