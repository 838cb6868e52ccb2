"""What a number of episodes says: a success rate and a mean, each with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and the interval it is known to within."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def wilson_interval(num_successes: int, num_trials: int, z: float = 1.96) -> Estimate:
    """A success rate with its Wilson score interval, which stays inside [0, 1] and is honest for few trials.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference" (1927).

    Args:
        num_successes: trials that succeeded.
        num_trials: all trials; with none the rate is 0 and the interval is everything.
        z: width in standard deviations; 1.96 gives 95 %.

    Raises:
        ValueError: more successes than trials, or fewer than none.

    Example:
        >>> print(wilson_interval(8, 10))
        0.8 [0.49, 0.943]
        >>> print(wilson_interval(0, 20))
        0 [0, 0.161]
    """
    if not 0 <= num_successes <= num_trials:
        raise ValueError(f"expected 0 <= successes <= trials, got {num_successes} of {num_trials}")
    if num_trials == 0:
        return Estimate(0.0, 0.0, 1.0)
    rate = num_successes / num_trials
    scale = 1 + z * z / num_trials
    centre = (rate + z * z / (2 * num_trials)) / scale
    half_width = z / scale * math.sqrt(rate * (1 - rate) / num_trials + z * z / (4 * num_trials * num_trials))
    # At 0 and 1 one end is exact; rounding must not put it beyond the rate itself.
    return Estimate(rate, max(0.0, min(rate, centre - half_width)), min(1.0, max(rate, centre + half_width)))


def pass_at(num_trials: int, num_successes: int, k: int) -> float:
    """Return the probability that at least one of ``k`` trials drawn from those made succeeded: pass@k, unbiased.

    Source: Chen et al., "Evaluating Large Language Models Trained on Code" (2021), equation 1.

    Raises:
        ValueError: fewer than ``k`` trials were made.

    Example:
        >>> pass_at(4, 1, 1), pass_at(4, 1, 4), round(pass_at(10, 3, 2), 4)
        (0.25, 1.0, 0.5333)
    """
    if k > num_trials:
        raise ValueError(f"pass@{k} needs {k} trials, got {num_trials}")
    return 1.0 - math.comb(num_trials - num_successes, k) / math.comb(num_trials, k)


def mean_interval(
    values: Sequence[float], *, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> Estimate:
    """A mean with its percentile bootstrap interval; the same values and seed always give the same interval.

    Raises:
        ValueError: no values.

    Example:
        >>> print(mean_interval([1.0, 1.0, 1.0]))
        1 [1, 1]
    """
    if not values:
        raise ValueError("a mean needs at least one value")
    sample = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    # One resample at a time keeps memory at the sample's size however many episodes there are.
    means = np.array([sample[rng.integers(len(sample), size=len(sample))].mean() for _ in range(num_resamples)])
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(float(sample.mean()), float(low), float(high))


def mcnemar(num_only_a: int, num_only_b: int) -> float:
    """Two-sided p-value that A and B solve equally much, from the pairs that one of them alone solved.

    The exact test: under the hypothesis each such pair is A's with probability one half.

    Source: Q. McNemar, "Note on the sampling error of the difference between correlated proportions or percentages"
    (1947), with the exact binomial distribution.

    Example:
        >>> mcnemar(1, 9), mcnemar(3, 3)
        (0.021484375, 1.0)
    """
    num_pairs, fewer = num_only_a + num_only_b, min(num_only_a, num_only_b)
    tail = sum(math.comb(num_pairs, number) for number in range(fewer + 1))
    return min(1.0, tail / 2 ** (num_pairs - 1)) if num_pairs else 1.0


def paired_interval(differences: Sequence[float], tasks: Sequence[str]) -> Estimate:
    """The mean of pairs' differences with its bootstrap interval over tasks, whose pairs are drawn together.

    Example:
        >>> print(paired_interval([1.0, 0.0, 1.0, 1.0], ["a", "a", "b", "c"]))
        0.833 [0.5, 1]
    """
    by_task: dict[str, list[float]] = {}
    for task, difference in zip(tasks, differences, strict=True):
        by_task.setdefault(task, []).append(difference)
    return mean_interval([sum(some) / len(some) for some in by_task.values()])
