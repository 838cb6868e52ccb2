"""DART: fewer episodes for tasks that the policy has learnt, and a limit of turns for each task.

Source: "Efficient Multi-turn RL for GUI Agents via Decoupled Training and Adaptive Data Curation". From a success rate
of 0.6 on, a task gets fewer rollouts. The paper gives no formula for the number. It falls linearly here. A task is not
played for more steps than its longest success took. Failures otherwise run to the limit of the environment, and take
most of the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import budget, horizon
from agentgym.rollout.strategies.history import Visit
from agentgym.settings import Count, Natural, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkingOptions(Options):
    """Settings of DART's numbers of rollouts."""

    kind: str = "shrinking"
    above: Annotated[float, Range(at_least=0, below=1)] = 0.6
    """Success rate above which a group shrinks."""
    low: Count = 2
    """Fewest episodes of a group, at success rate 1."""


@budget(
    "shrinking",
    paper="Efficient Multi-turn RL for GUI Agents via Decoupled Training and Adaptive Data Curation",
    status="experimental",
    limits="the number falls linearly, which is ours",
    test="tests/rollout/test_strategies.py::test_groups_shrink_as_their_task_is_learnt",
)
def shrinking(rates: Sequence[float | None], group_size: int, options: ShrinkingOptions) -> list[int]:
    """Return the sizes of the groups, rounded up: ``group_size`` for tasks that fail often or are new.

    Example:
        >>> shrinking([None, 0.5, 0.6, 0.8, 1.0], 8, ShrinkingOptions())
        [8, 8, 8, 5, 2]
    """
    low = min(options.low, group_size)
    sizes = []
    for rate in rates:
        excess = 0.0 if rate is None else max(0.0, rate - options.above) / (1 - options.above)
        sizes.append(math.ceil(group_size - (group_size - low) * excess - 1e-9))
    return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestSuccessOptions(Options):
    """Settings of DART's limit of turns."""

    kind: str = "longest_success"
    margin: Natural = 0
    """Turns beyond the longest success."""


@horizon(
    "longest_success",
    paper="Efficient Multi-turn RL for GUI Agents via Decoupled Training and Adaptive Data Curation",
    status="reproduced",
    limits="counts successes of the run, not those of strategy.probe; a limit rises by margin at most",
    test="tests/rollout/test_strategies.py::test_a_task_is_played_for_as_long_as_its_longest_success",
)
def longest_success(visits: Sequence[Visit], options: LongestSuccessOptions) -> int | None:
    """Return the most turns of a task's episodes, None for a task that never succeeded.

    Example:
        >>> visits = [Visit(0, 8, 0), Visit(3, 8, 2, longest=7), Visit(5, 8, 1, longest=4)]
        >>> [longest_success(visits[:num], LongestSuccessOptions(margin=1)) for num in range(4)]
        [None, None, 8, 8]
    """
    longest = max((visit.longest for visit in visits), default=0)
    return longest + options.margin if longest else None
