"""Tasks in the run's shuffled order, each once per epoch: the default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import task_source


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions(Options):
    """No settings."""

    kind: str = "order"


@task_source("order", paper="every task once per epoch", status="reproduced", options=OrderOptions)
def order(positions: Sequence[int], order: Callable[[int], int]) -> list[int]:
    """Return the tasks of the positions."""
    return [order(position) for position in positions]
