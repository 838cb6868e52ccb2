"""Tasks of medium difficulty, drawn by their distance to it.

Source: "Improving Data Efficiency for LLM Reinforcement Fine-tuning Through Difficulty-targeted Online Data Selection
and Rollout Replay" (DOTS). A task of difficulty d, one minus its success rate, is drawn with a probability in
proportion to ``exp(-|d - target| / temperature)``. The paper predicts difficulties from those of a reference set, by
attention over embeddings of the questions. Here a task has the difficulty of its last visit, and one that was never
played the mean of those that were: attention that tells no tasks apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import task_source
from agentgym.rollout.strategies.drawing import drawn
from agentgym.rollout.strategies.history import TaskHistory
from agentgym.settings import Count, Fraction, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class DotsOptions(Options):
    """Settings of DOTS."""

    kind: str = "dots"
    pool: Count = 512
    """Tasks to choose among: the first of the run's order."""
    target: Fraction = 0.5
    """The difficulty that is sought."""
    temperature: Positive = 0.1
    """Smaller values keep closer to the target. The release has 0.001, with predictions for all tasks at each step."""


@task_source(
    "dots",
    paper="Improving Data Efficiency for LLM Reinforcement Fine-tuning Through Difficulty-targeted Online Data "
    "Selection and Rollout Replay",
    status="experimental",
    limits="difficulties are those of the last visits, not predicted from embeddings; no rollout replay",
    test="tests/rollout/test_task_sources.py::test_dots_golden_numbers",
)
def dots(
    num_tasks: int,
    positions: Sequence[int],
    order: Callable[[int], int],
    history: TaskHistory,
    rng: np.random.Generator,
    options: DotsOptions,
) -> list[int]:
    """Return tasks drawn without replacement, those near the target difficulty more often."""
    pool = [order(position) for position in range(min(options.pool, num_tasks))]
    rates = [history.rate(task) for task in pool]
    return drawn(pool, log_weights(rates, options), len(positions), rng)


def log_weights(rates: Sequence[float | None], options: DotsOptions) -> NDArray[np.float64]:
    """Return the logarithms of the tasks' weights ``[N]``, by their success rates; None for one that is not known.

    Example:
        >>> logs = log_weights([0.9, 0.5, 0.3], DotsOptions())
        >>> np.round(np.exp(logs) / np.exp(logs).sum(), 6).tolist()
        [0.015876, 0.866813, 0.11731]
    """
    known = [1 - rate for rate in rates if rate is not None]
    unknown = sum(known) / len(known) if known else options.target
    difficulty = np.array([unknown if rate is None else 1 - rate for rate in rates])
    return np.asarray(-np.abs(difficulty - options.target) / options.temperature)
