"""A step's episodes go where one more tells most about the success of its task.

Source: the rollout allocator of "XRPO: Pushing the limits of GRPO with Targeted Exploration and Exploitation". The mean
reward of n episodes is known up to ``h(n) = t(0.975, n - 1) s / sqrt(n)``, the half-width of its 95 % interval. Each
group begins with ``low`` episodes. Then the next episode goes, again and again, to the group with the largest
``h(n) - h(n + 1) + bonus sqrt(log(T) / n)``, where T counts the episodes given so far. The paper measures the deviation
s within the step, after the first episodes; groups are planned before a step here, so it is that of the task's last
visit, and 1/2, the largest, for a task that was never played.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import budget
from agentgym.settings import NonNegative, Range

Z = 1.959963984540054
"""The 0.975 quantile of the normal distribution."""
T = (math.nan, 12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912)
"""The 0.975 quantiles of Student's t by degrees of freedom, where the expansion of :func:`quantile` is poor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XrpoOptions(Options):
    """Settings of XRPO's allocator."""

    kind: str = "xrpo"
    low: Annotated[int, Range(at_least=2)] = 2
    """Episodes that each group begins with."""
    high: int = 32
    """Most episodes of a group."""
    bonus: NonNegative = 0.1
    """Weight of the bonus for groups with few episodes; ours, the paper's is not known."""

    def check_together(self) -> None:
        self.check(is_ok=self.low <= self.high, message=f"needs low <= high, got {self.low} and {self.high}")


@budget(
    "xrpo",
    paper="XRPO: Pushing the limits of GRPO with Targeted Exploration and Exploitation",
    status="experimental",
    limits="deviations are those of the last visits, so success between 0.1 and 0.9 gives nearly equal groups; no "
    "in-context seeding, no sharpened advantages",
    test="tests/rollout/test_strategies.py::test_xrpo_golden_numbers",
)
def xrpo(rates: Sequence[float | None], group_size: int, options: XrpoOptions) -> list[int]:
    """Return a size per group; together they have as many episodes as even groups would.

    Example:
        >>> xrpo([0.5, 0.0], 4, XrpoOptions()), xrpo([0.5, 0.0], 4, XrpoOptions(bonus=0.5))
        ([6, 2], [5, 3])
    """
    deviations = [0.5 if rate is None else math.sqrt(rate * (1 - rate)) for rate in rates]
    sizes = [min(options.low, group_size)] * len(rates)
    total = group_size * len(rates)
    for given in range(sum(sizes), total):
        open_ = [at for at, size in enumerate(sizes) if size < options.high]
        if not open_:
            break
        worth = [
            _shrink(sizes[at]) * deviations[at] + options.bonus * math.sqrt(math.log(given) / sizes[at]) for at in open_
        ]
        sizes[open_[worth.index(max(worth))]] += 1
    return sizes


def quantile(freedom: int) -> float:
    """Return the 0.975 quantile of Student's t distribution.

    From 7 degrees of freedom on it is the expansion around the normal quantile, right to four digits.

    Example:
        >>> [round(quantile(freedom), 3) for freedom in (1, 4, 5, 10, 31)]
        [12.706, 2.776, 2.571, 2.228, 2.04]
    """
    if freedom < len(T):
        return T[freedom]
    terms = (
        (Z**3 + Z) / 4,
        (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96,
        (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384,
        (79 * Z**9 + 776 * Z**7 + 1482 * Z**5 - 1920 * Z**3 - 945 * Z) / 92160,
    )
    return Z + sum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))


@cache
def _shrink(size: int) -> float:
    """Return by how much one more episode narrows the interval, at a deviation of 1."""
    return quantile(size - 1) / math.sqrt(size) - quantile(size) / math.sqrt(size + 1)
