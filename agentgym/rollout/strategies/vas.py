"""Tasks whose rewards vary, mixed with all tasks in turn.

Source: variance-aware sampling of "MMR1: Enhancing Multimodal Reasoning with Variance-Aware Sampling and Open
Resources" (``verl/curriculum/samplers.py`` of its release). A share of each step's groups goes to tasks drawn in
proportion to the variance ``p (1 - p)`` of their success, the others to all tasks in turn. The paper samples every task
again now and then to measure the variance, and adds the diversity of its answers to it; here the variance is that of
the task's last visit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import task_source
from agentgym.rollout.strategies.drawing import drawn
from agentgym.rollout.strategies.history import TaskHistory
from agentgym.settings import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class VasOptions(Options):
    """Settings of variance-aware sampling."""

    kind: str = "vas"
    share: Annotated[float, Range(above=0, below=1)] = 0.5
    """Share of the groups whose tasks are drawn by variance."""


@task_source(
    "vas",
    paper="MMR1: Enhancing Multimodal Reasoning with Variance-Aware Sampling and Open Resources",
    status="experimental",
    limits="the variance of success alone, of a task's last visit; no diversity of answers",
    test="tests/rollout/test_task_sources.py::test_vas_mixes_by_its_share",
)
def vas(
    positions: Sequence[int],
    order: Callable[[int], int],
    history: TaskHistory,
    rng: np.random.Generator,
    options: VasOptions,
) -> list[int]:
    """Return tasks drawn by the variance of their success, then the next ones of the run's order.

    Where too few tasks are known to vary, the run's order fills the places.

    Example:
        >>> vas(range(4), lambda position: position, TaskHistory(), np.random.default_rng(0), VasOptions())
        [0, 1, 2, 3]
    """
    first, last = (math.ceil(at * (1 - options.share)) for at in (positions[0], positions[-1] + 1))
    rates = {task: history.rate(task) or 0.0 for task in history}
    varying = {task: rate * (1 - rate) for task, rate in rates.items() if 0 < rate < 1}
    num_drawn = min(len(positions) - (last - first), len(varying))
    weights = [math.log(variance) for variance in varying.values()]
    chosen = drawn(list(varying), weights, num_drawn, rng)
    return chosen + [order(at) for at in range(first, first + len(positions) - num_drawn)]
