"""The state that every actor reports in a health check."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, field

from agentgym.engine import EngineHealth


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
