"""VADE: choose tasks with uncertain success by Thompson sampling.

Source: "VADE: Variance-Aware Dynamic Sampling via Online Sample-Level Difficulty Estimation". Each task has a Beta
posterior of its success rate, with the prior (1, 1). A step draws a rate p from every posterior and plays the tasks
with the largest p (1 - p), the variance of their reward. A visit with k successes of G episodes moves the posterior to
``alpha = decay_visited * alpha + k`` and ``beta = decay_visited * beta + G - k``; every step moves all posteriors
towards the prior, since the policy changes. The paper gives no decays; the defaults 0.9 and 0.99 are agentgym's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import task_source
from agentgym.rollout.strategies.history import TaskHistory, Visit
from agentgym.settings import Count, PositiveFraction

PRIOR = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VadeOptions(Options):
    """Settings of VADE."""

    kind: str = "vade"
    pool: Count = 512
    """Number of tasks to choose from, the first in the run's order."""
    decay_visited: PositiveFraction = 0.9
    """Factor on a posterior's parameters at a visit."""
    decay: PositiveFraction = 0.99
    """Factor on a posterior's distance to the prior at every step."""


@task_source(
    "vade",
    paper="VADE: Variance-Aware Dynamic Sampling via Online Sample-Level Difficulty Estimation",
    status="reproduced",
    limits="decays are agentgym's",
    test="tests/rollout/test_strategies.py::test_vade_posterior",
)
def vade(
    num_tasks: int,
    positions: Sequence[int],
    order: Callable[[int], int],
    history: TaskHistory,
    step: int,
    rng: np.random.Generator,
    options: VadeOptions,
) -> list[int]:
    """Return the tasks whose drawn success rates have the largest variance.

    If the pool is smaller than the number of groups, its tasks repeat.
    """
    pool = [order(position) for position in range(min(options.pool, num_tasks))]
    parameters = np.array([posterior(history.visits(task), step, options) for task in pool])
    drawn = rng.beta(parameters[:, 0], parameters[:, 1])
    best = np.argsort(-drawn * (1 - drawn), kind="stable")
    return [pool[best[at % len(pool)]] for at in range(len(positions))]


def posterior(visits: Sequence[Visit], step: int, options: VadeOptions) -> tuple[float, float]:
    """Return alpha and beta of a task's success rate before a step.

    Example:
        >>> options = VadeOptions(decay=1.0, decay_visited=0.9)
        >>> posterior([Visit(0, 8, 3)], 1, options)
        (3.9, 5.9)
    """
    alpha = beta = PRIOR
    last = 0
    for visit in visits:
        alpha, beta = (_faded(value, visit.step - last, options.decay) for value in (alpha, beta))
        alpha = options.decay_visited * alpha + visit.num_successes
        beta = options.decay_visited * beta + visit.num_episodes - visit.num_successes
        last = visit.step
    return _faded(alpha, step - last, options.decay), _faded(beta, step - last, options.decay)


def _faded(value: float, num_steps: int, decay: float) -> float:
    return PRIOR + (value - PRIOR) * decay ** max(num_steps, 0)
