"""State that actors of every kind report, and folders and child processes that end with an actor."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentgym.engine import EngineHealth
from agentgym.rollout.in_flight import Sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorState:
    """An actor's answer to a health check."""

    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Identifier of this start of the actor; a restarted actor has another one."""
    pid: int = field(default_factory=os.getpid)
    serial: int = 0
    """Serial number of the weights that an engine serves, 0 while it has none."""
    health: EngineHealth | None = None
    """Load of an engine; None for other actors, before the first weights, and if the engine reports none."""
    sampled: Mapping[int, Sampled] = field(default_factory=dict)
    """Turns of an env worker's episodes since it started, by the trainer's rank that asked for them; empty for other
    actors."""


def ending_with_parent() -> list[str]:
    """Return a command prefix that ends the command with its parent thread; empty if the system has none."""
    return ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []


# A child would be killed with its actor, so the shell that waits for the end of its input is a grandchild.
_CLEAN = """exec 3<&0
(groups=
while read -r group <&3; do groups="$groups -$group"; done
[ -z "$groups" ] || kill -9 $groups
rm -rf -- "$0") &"""


class Remains:
    """A temporary folder and process groups that end with this process, also if it is killed.

    Args:
        prefix: the beginning of the folder's name.
    """

    def __init__(self, prefix: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=prefix))
        nowhere = subprocess.DEVNULL
        shell = subprocess.Popen(
            ["sh", "-c", _CLEAN, self.folder],
            stdin=subprocess.PIPE,
            stdout=nowhere,
            stderr=nowhere,
            start_new_session=True,
        )
        shell.wait()
        assert shell.stdin is not None
        self._pipe = shell.stdin

    def add_group(self, leader: int) -> None:
        """Kill a process group when this process ends: a server's workers may outlive the server."""
        self._pipe.write(f"{leader}\n".encode())
        self._pipe.flush()
