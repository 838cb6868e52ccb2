"""Knapsack budgets: a step's episodes go to the tasks in which they are most likely to give a gradient.

Source: "Knapsack RL: Unlocking Exploration of LLMs via Optimizing Budget Allocation". The value of N episodes of a task
with success rate p is ``(1 - p^N - (1 - p)^N) p (1 - p)^2``: the probability that the group has both successes and
failures, times the expected size of the gradient step. The sum over a step's tasks is maximised at a fixed number of
episodes. The value is strictly concave in N, so taking the largest marginal gain again and again is exact (the paper
uses dynamic programming). Tasks that always fail or always succeed have value 0 at any N and get the fewest episodes.
Remaining episodes go to tasks that always failed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import budget
from agentgym.settings import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class KnapsackOptions(Options):
    """Bounds of a group."""

    kind: str = "knapsack"
    low: int = 2
    """Fewest episodes of a group."""
    high: int = 128
    """Most episodes of a group."""

    def check_together(self) -> None:
        self.check(is_ok=1 <= self.low <= self.high, message=f"needs 1 <= low <= high, got {self.low} and {self.high}")


@budget(
    "knapsack",
    paper="Knapsack RL: Unlocking Exploration of LLMs via Optimizing Budget Allocation",
    status="reproduced",
    limits="every episode weighs alike in the loss, so large groups weigh more",
    test="tests/rollout/test_strategies.py::test_knapsack_golden_numbers",
)
def knapsack(rates: Sequence[float | None], group_size: int, options: KnapsackOptions) -> list[int]:
    """Return one size per group, with the same total as groups of equal size.

    Groups of tasks without results keep the configured size.

    Example:
        >>> knapsack([0.1, 0.5, 0.9], 8, KnapsackOptions())
        [15, 7, 2]
    """
    known = [at for at, rate in enumerate(rates) if rate is not None]
    sizes = [group_size] * len(rates)
    for at in known:
        sizes[at] = min(options.low, group_size)
    left = group_size * len(rates) - sum(sizes)
    gains = [(-_gain(sizes[at], rates[at]), at) for at in known]
    heapq.heapify(gains)
    while left and gains:
        gain, at = heapq.heappop(gains)
        if not gain:
            break
        sizes[at] += 1
        left -= 1
        if sizes[at] < options.high:
            heapq.heappush(gains, (-_gain(sizes[at], rates[at]), at))
    return _with_rest(sizes, left, [at for at in known if not rates[at]] or known, options.high)


def value(size: int, rate: float) -> float:
    """Return the value of a group of ``size`` episodes at a success rate."""
    return (1 - rate**size - (1 - rate) ** size) * rate * (1 - rate) ** 2


def _gain(size: int, rate: float | None) -> float:
    return 0.0 if rate is None else value(size + 1, rate) - value(size, rate)


def _with_rest(sizes: list[int], left: int, takers: Sequence[int], high: int) -> list[int]:
    """Distribute remaining episodes among the takers in turn, up to ``high``; the rest is dropped."""
    sizes = list(sizes)
    while left and (open_ := [at for at in takers if sizes[at] < high]):
        for at in open_[:left]:
            sizes[at] += 1
        left -= min(left, len(open_))
    return sizes


# ------------------------------------------------------------------------ more episodes for groups that turned out hard
# Source: "Depth-Breadth Synergy in RLVR: Unlocking LLM Reasoning Gains with Adaptive Exploration" (DARS). The absolute
# advantages of a GRPO group sum to ``2 N sqrt(u (1 - u))`` at success rate u, so hard groups teach less. After a group
# of ``group_size`` episodes with u below one half, episodes are added until the sum is that of u = 1/2 (``equal``),
# times ``2 (1 - u)`` (``hardness``).


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
    """Return the number of episodes to add to a group with this success rate.

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
