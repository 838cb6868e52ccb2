"""Episodes without hints."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import guidance


@dataclass(frozen=True, slots=True, kw_only=True)
class UnaidedOptions(Options):
    """No settings."""

    kind: str = "unaided"


@guidance("unaided", paper="no hints", status="reproduced", options=UnaidedOptions)
def unaided() -> tuple[int, int]:
    """Return that no episode gets hints.

    Example:
        >>> unaided()
        (0, 0)
    """
    return 0, 0
