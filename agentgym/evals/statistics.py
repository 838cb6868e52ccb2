"""Numbers of episodes and what they tell: rates and means with intervals, repeats of a task, pairs of two policies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

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
    return _wilson(num_successes / num_trials, num_trials, z)


def _wilson(rate: float, num_trials: float, z: float) -> Estimate:
    scale = 1 + z * z / num_trials
    centre = (rate + z * z / (2 * num_trials)) / scale
    half_width = z / scale * math.sqrt(rate * (1 - rate) / num_trials + z * z / (4 * num_trials * num_trials))
    # At 0 and 1 one end is exact; rounding must not put it beyond the rate itself.
    return Estimate(rate, max(0.0, min(rate, centre - half_width)), min(1.0, max(rate, centre + half_width)))


def clustered_interval(trials_by_task: Iterable[Sequence[bool]]) -> Estimate:
    """A success rate over tasks that are played several times, with a 95 % interval for other tasks of their kind.

    Episodes of one task are alike, so they tell less than as many episodes of different tasks. The interval is
    Wilson's for the number of independent trials that would vary as much as the tasks' rates do, with Student's t for
    few tasks. With one trial a task it is Wilson's own.

    Source: N. Dean and M. Pagano, "Evaluating Confidence Interval Methods for Binomial Proportions in Clustered
    Surveys" (2015), the Wilson interval with the effective sample size; the variance is that of a ratio over clusters.

    Args:
        trials_by_task: of each task whether each of its trials succeeded; tasks without a trial are left out.

    Example:
        >>> print(clustered_interval([[True], [True], [False]] * 10))
        0.667 [0.488, 0.808]
        >>> print(clustered_interval([[True] * 4, [True] * 4, [False] * 4] * 10))
        0.667 [0.48, 0.812]
    """
    tasks = [(sum(trials), len(trials)) for trials in trials_by_task if trials]
    num_trials, num_successes = sum(size for _, size in tasks), sum(wins for wins, _ in tasks)
    if num_trials == len(tasks):
        return wilson_interval(num_successes, num_trials)
    rate = num_successes / num_trials
    # trials that say no more than one a task, where tasks have different numbers of them (Kish)
    fewest = num_trials**2 / sum(size**2 for _, size in tasks)
    effective = fewest
    if 0 < rate < 1 and len(tasks) > 1:
        scatter = sum((wins - rate * size) ** 2 for wins, size in tasks)
        variance = len(tasks) / (len(tasks) - 1) * scatter / num_trials**2
        effective = min(max(rate * (1 - rate) / variance, fewest), num_trials) if variance else num_trials
    return _wilson(rate, effective, _student(max(len(tasks) - 1, 1)))


_STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""Student's t quantiles of 95 % in both tails for 1 to 10 degrees of freedom."""


def _student(degrees: int) -> float:
    """Student's t quantile of 95 % in both tails; from 11 degrees on by Fisher's and Cornish's expansion."""
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    z = NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


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


def pass_all(num_trials: int, num_successes: int, k: int) -> float:
    """Return the probability that all of ``k`` trials drawn from those made succeeded: pass^k, unbiased.

    Source: Yao et al., "tau-bench: A Benchmark for Tool-Agent-User Interaction in Real-World Domains" (2024).

    Raises:
        ValueError: fewer than ``k`` trials were made.

    Example:
        >>> pass_all(4, 3, 1), pass_all(4, 3, 4), pass_all(4, 3, 2)
        (0.75, 0.0, 0.5)
    """
    if k > num_trials:
        raise ValueError(f"pass^{k} needs {k} trials, got {num_trials}")
    return math.comb(num_successes, k) / math.comb(num_trials, k)


def best_of(scores: Sequence[float], k: int) -> float:
    """Return the expected best of ``k`` scores drawn from those of a task, as if a perfect judge chose among them.

    With scores of 0 and 1 it is :func:`pass_at`.

    Raises:
        ValueError: there are fewer than ``k`` scores.

    Example:
        >>> best_of([0.0, 0.5, 1.0], 1), round(best_of([0.0, 0.5, 1.0], 2), 4), best_of([0.0, 0.5, 1.0], 3)
        (0.5, 0.8333, 1.0)
    """
    return chosen_of(scores, scores, k)


def chosen_of(scores: Sequence[float], values: Sequence[float], k: int) -> float:
    """Return the expected value of the one with the best score among ``k`` drawn from those of a task.

    With a judge's scores, and success for values, it is best-of-n as a judge chooses. Of equal scores the later counts.

    Raises:
        ValueError: there are fewer than ``k`` scores.

    Example:
        >>> chosen_of([0.2, 0.9, 0.4], [0.0, 0.0, 1.0], 3), round(chosen_of([0.2, 0.9, 0.4], [0.0, 0.0, 1.0], 2), 4)
        (0.0, 0.3333)
    """
    if k > len(scores):
        raise ValueError(f"the best of {k} needs {k} scores, got {len(scores)}")
    ranked = [value for _, value in sorted(zip(scores, values, strict=True), key=lambda pair: pair[0])]
    # the one at place i, counted from 0, is the best of the draws whose other members lie below it
    ways = (math.comb(place, k - 1) * value for place, value in enumerate(ranked))
    return sum(ways) / math.comb(len(scores), k)


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


def student_interval(values: Sequence[float]) -> Estimate:
    """A mean with its 95 % interval by Student's t, for few values such as those of seeds.

    Raises:
        ValueError: there are fewer than two.

    Example:
        >>> print(student_interval([0.5, 0.6, 0.7]))
        0.6 [0.352, 0.848]
    """
    if len(values) < 2:
        raise ValueError("an interval needs at least two values")
    mean = fmean(values)
    half = _student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


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


def means_by_task(values: Sequence[float], tasks: Sequence[str]) -> list[float]:
    """The mean of each task's values, in the order in which tasks first occur.

    Example:
        >>> means_by_task([1.0, 0.0, 1.0], ["a", "a", "b"])
        [0.5, 1.0]
    """
    by_task: dict[str, list[float]] = {}
    for task, value in zip(tasks, values, strict=True):
        by_task.setdefault(task, []).append(value)
    return [sum(some) / len(some) for some in by_task.values()]


def paired_interval(differences: Sequence[float], tasks: Sequence[str]) -> Estimate:
    """The mean of pairs' differences with its bootstrap interval over tasks, whose pairs are drawn together.

    Example:
        >>> print(paired_interval([1.0, 0.0, 1.0, 1.0], ["a", "a", "b", "c"]))
        0.833 [0.5, 1]
    """
    return mean_interval(means_by_task(differences, tasks))


def sign_flip(differences: Sequence[float], *, num_resamples: int = 10_000, seed: int = 0) -> float:
    """Two-sided p-value that A and B do equally well, from the mean difference of each task.

    If they did, each task's difference would be as likely with the other sign. The p-value is the share of random
    signs whose sum is at least as far from zero. It may be used where tasks are played several times, where
    :func:`mcnemar` may not.

    Source: R. A. Fisher, "The Design of Experiments" (1935), section 21; the observed signs count as one of the draws.

    Example:
        >>> sign_flip([0.5, 0.25, -0.5, 0.0, 0.25]) > 0.5, sign_flip([0.5, 0.25, 0.5, 0.75] * 5) < 0.001
        (True, True)
    """
    sizes = np.abs(np.asarray([value for value in differences if value], dtype=np.float64))
    if not len(sizes):
        return 1.0
    observed = abs(sum(differences))
    signs = np.random.default_rng(seed).integers(0, 2, size=(num_resamples, len(sizes)), dtype=np.int8) * 2 - 1
    is_as_far = np.abs(signs @ sizes) >= observed - 1e-9 * len(sizes)
    return float((1 + is_as_far.sum()) / (1 + num_resamples))


def detectable_difference(differences: Sequence[float], power: float = 0.8) -> float:
    """Return the least true difference that a paired comparison of as many tasks finds with probability ``power``.

    Finding means that the 95 % interval leaves zero out. Normal approximation, with the scatter of these differences.

    Args:
        differences: the mean difference of each task, at least two.

    Example:
        >>> round(detectable_difference([1.0, 0.0, 0.0, -1.0] * 25), 3)
        0.199
    """
    z = NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(power)
    return z * float(np.std(differences, ddof=1)) / math.sqrt(len(differences))


def tasks_needed(differences: Sequence[float], power: float = 0.8) -> int | None:
    """Return how many tasks it takes to find the mean of these differences with probability ``power``.

    None if the mean is 0: no number of tasks finds that.

    Example:
        >>> tasks_needed([1.0, 0.0, 0.0, -1.0, 0.0, 1.0] * 10)
        136
    """
    mean = float(np.mean(differences))
    if mean == 0 or len(differences) < 2:
        return None
    return math.ceil(len(differences) * (detectable_difference(differences, power) / mean) ** 2)
