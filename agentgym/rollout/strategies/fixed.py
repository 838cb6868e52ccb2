"""Episodes as long as the environment allows: the default."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import horizon


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedOptions(Options):
    """No settings."""

    kind: str = "fixed"


@horizon("fixed", paper="the environment's own limit", status="reproduced", options=FixedOptions)
def fixed() -> int | None:
    """Return no limit beside the environment's own."""
    return None
