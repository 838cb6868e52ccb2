"""More episodes for groups that turned out hard.

Source: "Depth-Breadth Synergy in RLVR: Unlocking LLM Reasoning Gains with Adaptive Exploration" (DARS). The absolute
advantages of a GRPO group sum to ``2 N sqrt(u (1 - u))`` at success rate u, so hard groups teach less. After a group
of ``group_size`` episodes with u below one half, episodes are added until the sum is that of u = 1/2 (``equal``), times
``2 (1 - u)`` (``hardness``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import budget
from agentgym.settings import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class DarsOptions(Options):
    """Settings of DARS."""

    kind: str = "dars"
    schedule: Literal["equal", "hardness"] = "equal"
    high: Count = 32
    """Most episodes of a group."""


@budget(
    "dars",
    paper="Depth-Breadth Synergy in RLVR: Unlocking LLM Reasoning Gains with Adaptive Exploration",
    status="reproduced",
    limits="a step has more episodes than groups_per_step * group_size",
    test="tests/rollout/test_strategies.py::test_dars_golden_numbers",
)
def dars(rate: float, group_size: int, options: DarsOptions) -> int:
    """Return how many episodes are added to a group with this success rate.

    Example:
        >>> [dars(rate, 8, DarsOptions()) for rate in (0.0, 0.125, 0.25, 0.5)]
        [24, 5, 2, 0]
    """
    if rate >= 1 / 2:
        return 0
    spread = math.sqrt(rate * (1 - rate))
    wanted = group_size / (2 * spread) if spread else math.inf
    if options.schedule == "hardness":
        wanted *= 2 * (1 - rate)
    return max(0, min(options.high, math.ceil(min(wanted, options.high))) - group_size)
