"""Tasks whose success is uncertain, drawn by a lasting estimate of their success.

Source: "Single-stream Policy Optimization" and its code (verl-recipe ``spo/spo_ray_trainer.py``). Each task has a Beta
tracker of its success rate v, and is drawn with a weight of ``sqrt(v (1 - v)) + 0.05``, the deviation of its reward
and a little for all tasks. A visit with k successes of n episodes moves the tracker to ``alpha = memory * alpha + k``
and ``beta = memory * beta + n - k``. A probe before RL (``strategy.probe``) is the release's offline estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from agentgym.credit.estimators.spo import spo_prior
from agentgym.plugins import Options
from agentgym.rollout.strategies.component import task_source
from agentgym.rollout.strategies.drawing import drawn
from agentgym.rollout.strategies.history import TaskHistory, Visit
from agentgym.settings import Count, Positive, PositiveFraction


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoSourceOptions(Options):
    """Settings of SPO's sampling."""

    kind: str = "spo"
    pool: Count = 512
    """Tasks to choose among: the first of the run's order."""
    memory: PositiveFraction = 0.96
    """Kept of a tracker at a visit: the release's value for a policy that has not drifted."""
    floor: Positive = 0.05
    """Added to every task's weight."""


@task_source(
    "spo",
    paper="Single-stream Policy Optimization",
    status="reproduced",
    limits="forgets by visits alone, and not by the policy's drift on a task",
    test="tests/rollout/test_task_sources.py::test_spo_weights",
)
def spo(
    num_tasks: int,
    positions: Sequence[int],
    order: Callable[[int], int],
    history: TaskHistory,
    rng: np.random.Generator,
    options: SpoSourceOptions,
) -> list[int]:
    """Return tasks drawn without replacement by their weights."""
    pool = [order(position) for position in range(min(options.pool, num_tasks))]
    weights = [math.log(weight(history.visits(task), options)) for task in pool]
    return drawn(pool, weights, len(positions), rng)


def weight(visits: Sequence[Visit], options: SpoSourceOptions) -> float:
    """Return the weight of a task.

    Example:
        >>> [round(weight(visits, SpoSourceOptions()), 6) for visits in ((), [Visit(-1, 8, 3)], [Visit(0, 200, 200)])]
        [0.55, 0.537498, 0.098814]
    """
    alpha, beta = tracker(visits, options.memory)
    rate = alpha / (alpha + beta)
    return math.sqrt(rate * (1 - rate)) + options.floor


def tracker(visits: Sequence[Visit], memory: float) -> tuple[float, float]:
    """Return alpha and beta of a task's success rate."""
    alpha, beta = spo_prior(0, 0)
    for visit in visits:
        if visit.step < 0:  # a probe
            alpha, beta = spo_prior(visit.num_episodes, visit.num_successes)
        else:
            alpha = memory * alpha + visit.num_successes
            beta = memory * beta + visit.num_episodes - visit.num_successes
    return alpha, beta
