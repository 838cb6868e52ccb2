"""The state that every actor reports."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorState:
    """One answer of an actor that was asked how it is."""

    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Another one after each start."""
    pid: int = field(default_factory=os.getpid)
    serial: int = 0
    """Of the weights an engine serves, 0 while it has none."""
