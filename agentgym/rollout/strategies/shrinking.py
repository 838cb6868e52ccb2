"""Fewer episodes for tasks that the policy has learnt.

Source: DART, "Efficient Multi-turn RL for GUI Agents via Decoupled Training and Adaptive Data Curation": from a success
rate of 0.6 on, a task gets fewer rollouts. The paper gives no formula for the number. It falls linearly here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import budget
from agentgym.settings import Count, Range


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
