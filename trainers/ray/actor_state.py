"""State that actors of every kind report, and child processes that end with an actor."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentgym.engine import EngineHealth
from agentgym.rollout.in_flight import SampledReport


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
    sampled: Mapping[int, SampledReport] = field(default_factory=dict)
    """Turns of an env worker's episodes since it started, by the trainer's rank that asked for them; empty for other
    actors."""


def ending_with_parent() -> list[str]:
    """Return a command prefix that ends the command with its parent thread; empty if the system has none."""
    return ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
