"""The same number of episodes for every group: the default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import budget


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenOptions(Options):
    """No settings."""

    kind: str = "even"


@budget("even", paper="group.group_size for every group", status="reproduced", options=EvenOptions)
def even(rates: Sequence[float | None], group_size: int) -> list[int]:
    """Return the configured group size for each group."""
    return [group_size] * len(rates)
