"""Every episode is trained once."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import replay


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshOptions(Options):
    """No settings."""

    kind: str = "fresh"


@replay("fresh", paper="no replay", status="reproduced", options=FreshOptions)
def fresh() -> tuple[int, int] | None:
    """Return that no member is replaced.

    Example:
        >>> fresh() is None
        True
    """
    return None
