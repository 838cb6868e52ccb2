"""A step's episodes go to the tasks where they are most likely to give a gradient.

Source: "Knapsack RL: Unlocking Exploration of LLMs via Optimizing Budget Allocation". N episodes of a task with success
rate p are worth ``(1 - p^N - (1 - p)^N) p (1 - p)^2``: the probability that the group has both successes and failures,
times the expected size of the step. The sum over a step's tasks is maximised at a fixed number of episodes. The value
is strictly concave in N, so taking the largest marginal gain again and again is exact (the paper uses dynamic
programming). Tasks that always fail or always succeed are worth nothing at any N and get the least; what is left over
goes to those that always failed.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import budget


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
    """Return a size per group; together they have as many episodes as even groups would.

    Groups of tasks that were never played keep the configured size.

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
    """Return what a group of ``size`` episodes is worth at a success rate."""
    return (1 - rate**size - (1 - rate) ** size) * rate * (1 - rate) ** 2


def _gain(size: int, rate: float | None) -> float:
    return 0.0 if rate is None else value(size + 1, rate) - value(size, rate)


def _with_rest(sizes: list[int], left: int, takers: Sequence[int], high: int) -> list[int]:
    """Share what is left over among the takers in turn, up to the bound; what no group may take is not played."""
    sizes = list(sizes)
    while left and (open_ := [at for at in takers if sizes[at] < high]):
        for at in open_[:left]:
            sizes[at] += 1
        left -= min(left, len(open_))
    return sizes
