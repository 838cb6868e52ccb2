"""Owners of sandboxes: identities of processes that stay unique after the process has ended.

Process ids are reused. An owner is therefore identified by its process id, its start time (in clock ticks since boot),
its process namespace, and the boot of the machine.
"""

from __future__ import annotations

import functools
import itertools
import os
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

PROJECT = "agentgym"
PREFIX = f"{PROJECT}."
LEASE_S = 24 * 3600.0
"""Seconds after which a sandbox may be removed even if it is not visible whether its owner lives."""
_PROC = Path("/proc")
_numbers = itertools.count()

OwnerState = Literal["alive", "dead", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A run: one process, from its start to its end.

    Example:
        >>> owner = current_owner()
        >>> owner.state(), Owner.of_labels(owner.labels()) == owner
        ('alive', True)
    """

    run: str
    machine: str
    boot: str
    pid_namespace: str
    pid: str
    start_ticks: str
    lease_until_s: str
    """Unix time in seconds."""

    def labels(self) -> dict[str, str]:
        """Return the owner as labels, for example of a container."""
        return {f"{PREFIX}project": PROJECT, **{f"{PREFIX}{name}": value for name, value in asdict(self).items()}}

    @classmethod
    def of_labels(cls, labels: Mapping[str, str]) -> Owner:
        """Return the owner in labels. Missing labels become empty, and the owner's state is then unknown."""
        return cls(**{field.name: labels.get(f"{PREFIX}{field.name}", "") for field in fields(cls)})

    def state(self) -> OwnerState:
        """Return the state of the owner's process, as far as this process can see it."""
        here = current_owner()
        if self.boot != here.boot:
            return "dead" if self.machine == here.machine and self.boot else "unknown"
        if self.pid_namespace != here.pid_namespace:
            return "unknown"
        return "alive" if self.start_ticks and start_ticks(int(self.pid)) == self.start_ticks else "dead"

    def is_gone(self) -> bool:
        """Return True if its sandboxes may be removed: it is dead, or not visible and its lease has expired."""
        state = self.state()
        return state == "dead" or (state == "unknown" and float(self.lease_until_s or "inf") < time.time())


def start_ticks(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot; empty if it has ended."""
    state, *rest = _stat_of(pid)
    return "" if state in "ZX" else rest[18]


def process_state(pid: int) -> str:
    """Return the kernel's state letter of a process, such as T for stopped; X if there is no such process."""
    return _stat_of(pid)[0]


def _stat_of(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state on."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X"]


def descendants(pid: int) -> list[int]:
    """Return the descendants of a process, the deepest last."""
    found, new = list[int](), [pid]
    while new:
        children = []
        for parent in new:
            with suppress(OSError):
                for task in (_PROC / str(parent) / "task").iterdir():
                    children += [int(child) for child in (task / "children").read_text().split()]
        found += children
        new = children
    return found


def current_owner() -> Owner:
    """Return the owner of this process; a forked process is another owner."""
    return _owner_of(os.getpid())


def next_sandbox_id() -> str:
    """Return a unique name that contains its owner."""
    return f"{PROJECT}-{current_owner().run}-{next(_numbers)}"


@functools.lru_cache(maxsize=2)
def _owner_of(pid: int) -> Owner:
    return Owner(
        run=uuid.uuid4().hex[:12],
        machine=_machine(),
        boot=(_PROC / "sys/kernel/random/boot_id").read_text().strip(),
        pid_namespace=os.readlink(_PROC / "self/ns/pid"),
        pid=str(pid),
        start_ticks=start_ticks(pid),
        lease_until_s=f"{time.time() + LEASE_S:.0f}",
    )


def _machine() -> str:
    try:
        return Path("/etc/machine-id").read_text().strip() or socket.gethostname()
    except OSError:
        return socket.gethostname()
