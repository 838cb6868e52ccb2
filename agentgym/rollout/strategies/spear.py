"""Self-imitation: stored successes are trained again, as long as the policy is worse than they are.

Source: the replay of SPEAR, "Learn the Ropes, Then Trust the Wins: Self-imitation with Progressive Exploration for
Agentic Reinforcement Learning" (``verl/trainer/ppo/ray_trainer_hybrid.py`` of its release). There, stored episodes have
a loss of their own: their advantage is measured anew against the median b of recent groups' rewards, those not above
it are left out, and the loss is warmed up by ``w = (1 - cos(pi s / S)) / 2`` over the first S steps s. Here a stored
success takes the place of a failed member, with the probability ``w (1 - b)``: the weight that it would have there, for
successes that earn 1. Its advantage is that of its new group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import replay
from agentgym.settings import Count, Natural


@dataclass(frozen=True, slots=True, kw_only=True)
class SpearOptions(Options):
    """Settings of SPEAR's replay."""

    kind: str = "spear"
    keep: Count = 8
    """Successes that are kept of a task, the latest."""
    max_age: Count = 10
    """Steps after which a success is not trained again."""
    window: Count = 100
    """Steps whose groups the median is taken over."""
    warmup_steps: Natural = 100
    """Steps over which replay becomes more likely; 0 for none."""


@replay(
    "spear",
    paper="Learn the Ropes, Then Trust the Wins: Self-imitation with Progressive Exploration for Agentic Reinforcement "
    "Learning",
    status="experimental",
    limits="a success joins a group of its task by chance, in place of a loss of its own",
    test="tests/rollout/test_strategies.py::test_spear_replays_by_its_warm_up_and_the_median",
)
def spear(
    successes: Sequence[bool | None],
    ages: Sequence[int],
    baseline: float,
    step: int,
    rng: np.random.Generator,
    options: SpearOptions,
) -> tuple[int, int] | None:
    """Return which failed member is replaced by which stored success, None for none.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> spear([True, False], [40, 3], 0.0, 100, draw, SpearOptions())
        (1, 1)
        >>> spear([True, False], [40, 3], 1.0, 100, draw, SpearOptions()) is None
        True
    """
    failed = [at for at, succeeded in enumerate(successes) if succeeded is False]
    young = [at for at, age in enumerate(ages) if age <= options.max_age]
    if not failed or not young or rng.random() >= warm_up(step, options.warmup_steps) * (1 - baseline):
        return None
    return int(rng.choice(failed)), int(rng.choice(young))


def warm_up(step: int, warmup_steps: int) -> float:
    """Return the weight of replay at a step, counted from 0.

    Example:
        >>> [round(warm_up(step, 200), 6) for step in (0, 50, 100, 200, 300)]
        [0.0, 0.146447, 0.5, 1.0, 1.0]
    """
    return 1.0 if step >= warmup_steps else (1 - math.cos(math.pi * step / warmup_steps)) / 2
