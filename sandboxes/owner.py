"""Owners of sandboxes: processes that can be told from every other, also after they have ended.

A number of a process is used again, so an owner is its number, the time it started (in clock ticks since the machine
did), the process namespace that the number counts in, and the start of the machine.
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
"""After this a sandbox may go even if whether its owner lives cannot be seen from here."""
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
    """Seconds since 1970."""

    def labels(self) -> dict[str, str]:
        """For whatever can carry labels."""
        return {f"{PREFIX}project": PROJECT, **{f"{PREFIX}{name}": value for name, value in asdict(self).items()}}

    @classmethod
    def of_labels(cls, labels: Mapping[str, str]) -> Owner:
        """The owner that wrote these; what is missing becomes empty, and its state unknown."""
        return cls(**{field.name: labels.get(f"{PREFIX}{field.name}", "") for field in fields(cls)})

    def state(self) -> OwnerState:
        """State of the owner's process, as far as can be seen from this one."""
        here = current_owner()
        if self.boot != here.boot:
            return "dead" if self.machine == here.machine and self.boot else "unknown"
        if self.pid_namespace != here.pid_namespace:
            return "unknown"
        return "alive" if self.start_ticks and start_ticks(int(self.pid)) == self.start_ticks else "dead"

    def is_gone(self) -> bool:
        """True if what belongs to it may be removed: it is dead, or out of sight and its lease is over."""
        state = self.state()
        return state == "dead" or (state == "unknown" and float(self.lease_until_s or "inf") < time.time())


def start_ticks(pid: int) -> str:
    """Return the start of a process, in clock ticks since the machine's; empty if it has ended."""
    state, *rest = _stat_of(pid)
    return "" if state in "ZX" else rest[18]


def process_state(pid: int) -> str:
    """Return the kernel's letter for a process's state, such as T for stopped; X if there is no such process."""
    return _stat_of(pid)[0]


def _stat_of(pid: int) -> list[str]:
    """Return the fields after a process's name, from its state on."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X"]


def descendants(pid: int) -> list[int]:
    """The processes below one, the lowest last."""
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
    """This process; another one after a fork."""
    return _owner_of(os.getpid())


def next_sandbox_id() -> str:
    """A name that says whose it is and that no other has."""
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
