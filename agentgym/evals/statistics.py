"""Statistics of episodes: rates and means with intervals, repeated episodes per task, paired comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

import numpy as np

_DRAWN_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def wilson_interval(num_successes: int, num_trials: int, z: float = 1.96) -> Estimate:
    """Return a success rate with its Wilson score interval, which stays inside [0, 1] and is accurate for few trials.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference" (1927).

    Args:
        num_successes: trials that succeeded.
        num_trials: number of trials; for 0 the rate is 0 and the interval is [0, 1].
        z: width in standard deviations; 1.96 gives 95 %.

    Raises:
        ValueError: ``num_successes`` is negative or above ``num_trials``.

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
    # At 0 and 1 one end of the interval is exact; rounding must not move it past the rate.
    return Estimate(rate, max(0.0, min(rate, centre - half_width)), min(1.0, max(rate, centre + half_width)))


def clustered_interval(trials_by_task: Iterable[Sequence[bool]]) -> Estimate:
    """Return the mean over tasks of each task's success rate, with a 95 % interval for the population of tasks.

    Every task has the same weight, however many of its trials were lost. Episodes of the same task are correlated, so
    they carry less information than episodes of different tasks. The interval is Wilson's for the effective number of
    independent trials, with Student's t for few tasks. With one trial per task it equals :func:`wilson_interval`.

    Source: N. Dean and M. Pagano, "Evaluating Confidence Interval Methods for Binomial Proportions in Clustered
    Surveys" (2015), the Wilson interval with the effective sample size; the variance is that of a mean over clusters.

    Args:
        trials_by_task: for each task, the success of each trial; tasks without a trial are ignored.

    Example:
        >>> print(clustered_interval([[True], [True], [False]] * 10))
        0.667 [0.488, 0.808]
        >>> print(clustered_interval([[True] * 4, [True] * 4, [False] * 4] * 10))
        0.667 [0.48, 0.812]
        >>> clustered_interval([[True], [False] * 3]).value  # as the mean of the rates 1 and 0
        0.5
    """
    tasks = [(sum(trials), len(trials)) for trials in trials_by_task if trials]
    num_trials, num_successes = sum(size for _, size in tasks), sum(wins for wins, _ in tasks)
    if num_trials == len(tasks):
        return wilson_interval(num_successes, num_trials)
    rates = [wins / size for wins, size in tasks]
    rate = math.fsum(rates) / len(tasks)
    # Kish's effective sample size if trials of a task were independent, each with the weight of its task's share
    most = len(tasks) ** 2 / math.fsum(1 / size for _, size in tasks)
    effective = float(len(tasks))
    if 0 < rate < 1 and len(tasks) > 1:
        variance = math.fsum((own - rate) ** 2 for own in rates) / (len(tasks) * (len(tasks) - 1))
        effective = min(max(rate * (1 - rate) / variance, effective), most) if variance else most
    return _wilson(rate, effective, _student(max(len(tasks) - 1, 1)))


_STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""Two-sided 95 % quantiles of Student's t for 1 to 10 degrees of freedom."""


def _student(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's t, above 10 degrees by the Cornish-Fisher expansion."""
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    z = NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def pass_at(num_trials: int, num_successes: int, k: int) -> float:
    """Return the unbiased estimate of pass@k: the probability that at least one of ``k`` trials succeeds.

    Source: Chen et al., "Evaluating Large Language Models Trained on Code" (2021), equation 1.

    Raises:
        ValueError: fewer than ``k`` trials were made.

    Example:
        >>> pass_at(4, 1, 1), pass_at(4, 1, 4), round(pass_at(10, 3, 2), 4)
        (0.25, 1.0, 0.5333)
    """
    if k > num_trials:
        raise ValueError(f"pass@{k} needs {k} trials, got {num_trials}")
    all_choices = math.comb(num_trials, k)
    # whole numbers first: pass@1, pass^1 and the success rate are then one number, to the last bit
    return (all_choices - math.comb(num_trials - num_successes, k)) / all_choices


def pass_all(num_trials: int, num_successes: int, k: int) -> float:
    """Return the unbiased estimate of pass^k: the probability that all of ``k`` trials succeed.

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
    """Return the expected maximum of ``k`` scores drawn without replacement, as if a perfect judge chose.

    With scores of 0 and 1 it is :func:`pass_at`.

    Raises:
        ValueError: there are fewer than ``k`` scores.

    Example:
        >>> best_of([0.0, 0.5, 1.0], 1), round(best_of([0.0, 0.5, 1.0], 2), 4), best_of([0.0, 0.5, 1.0], 3)
        (0.5, 0.8333, 1.0)
    """
    return chosen_of(scores, scores, k)


def chosen_of(scores: Sequence[float], values: Sequence[float], k: int) -> float:
    """Return the expected value of the trial with the best score among ``k`` trials drawn without replacement.

    With a judge's scores and success as values, this is the success of best-of-n. Of equal scores the later one counts.

    Raises:
        ValueError: there are fewer than ``k`` scores.

    Example:
        >>> chosen_of([0.2, 0.9, 0.4], [0.0, 0.0, 1.0], 3), round(chosen_of([0.2, 0.9, 0.4], [0.0, 0.0, 1.0], 2), 4)
        (0.0, 0.3333)
    """
    if k > len(scores):
        raise ValueError(f"the best of {k} needs {k} scores, got {len(scores)}")
    ranked = [value for _, value in sorted(zip(scores, values, strict=True), key=lambda pair: pair[0])]
    # item i in ascending order, from 0, is the best of comb(i, k - 1) draws: the other members lie below it
    ways = (math.comb(place, k - 1) * value for place, value in enumerate(ranked))
    return sum(ways) / math.comb(len(scores), k)


def mean_interval(
    values: Sequence[float], *, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> Estimate:
    """Return a mean with its percentile bootstrap interval. Equal values and seeds give equal intervals.

    Raises:
        ValueError: there are no values.

    Example:
        >>> print(mean_interval([1.0, 1.0, 1.0]))
        1 [1, 1]
    """
    if not values:
        raise ValueError("a mean needs at least one value")
    sample = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    at_once = max(1, _DRAWN_AT_ONCE // len(sample))  # of large samples one, so that memory follows their size
    counts = [min(at_once, num_resamples - done) for done in range(0, num_resamples, at_once)]
    means = np.concatenate(
        [sample[rng.integers(len(sample), size=(count, len(sample)))].mean(axis=1) for count in counts]
    )
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(float(sample.mean()), float(low), float(high))


def student_interval(values: Sequence[float]) -> Estimate:
    """Return a mean with its 95 % interval by Student's t, for few values, such as one per seed.

    Raises:
        ValueError: there are fewer than two values.

    Example:
        >>> print(student_interval([0.5, 0.6, 0.7]))
        0.6 [0.352, 0.848]
    """
    if len(values) < 2:
        raise ValueError("an interval needs at least two values")
    mean = fmean(values)
    half = _student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def seeds_text(values: Sequence[float], *, sign: bool = False) -> str:
    """Return a mean over seeds as text, with half the width of :func:`student_interval` where it has one.

    Args:
        values: one per seed.
        sign: write the sign of a positive mean, too, as for a difference.

    Example:
        >>> seeds_text([0.5, 0.6, 0.7]), seeds_text([0.625]), seeds_text([0.1, 0.1], sign=True)
        ('0.600 ± 0.248', '0.625 (1 seed)', '+0.100 (2 seeds, equal)')
    """
    mean = f"{fmean(values):{'+' if sign else ''}.3f}"
    if len(values) == 1:
        return f"{mean} (1 seed)"
    if len({*values}) == 1:
        return f"{mean} ({len(values)} seeds, equal)"
    span = student_interval(values)
    return f"{mean} ± {(span.high - span.low) / 2:.3f}"


def welch_interval(ones: Sequence[float], others: Sequence[float]) -> Estimate:
    """Return the mean of ``others`` minus that of ``ones`` with its 95 % interval, for values that are not pairs.

    Source: B. L. Welch, "The Generalization of 'Student's' Problem when Several Different Population Variances are
    Involved" (1947); the degrees of freedom are rounded down.

    Raises:
        ValueError: one of them has fewer than two values, or all values of each are equal.

    Example:
        >>> print(welch_interval([0.5, 0.6, 0.7], [0.7, 0.9, 0.8]))
        0.2 [-0.0267, 0.427]
    """
    if min(len(ones), len(others)) < 2:
        raise ValueError("an interval needs at least two values of each")
    errors = [stdev(values) ** 2 / len(values) for values in (ones, others)]
    if not sum(errors):
        raise ValueError("values without a spread have no interval")
    spread = sum(error**2 / (len(values) - 1) for error, values in zip(errors, (ones, others), strict=True))
    half = _student(int(sum(errors) ** 2 / spread + 1e-9)) * math.sqrt(sum(errors))
    difference = fmean(others) - fmean(ones)
    return Estimate(difference, difference - half, difference + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number, so that the chance of any false finding stays at the level tested.

    Source: S. Holm, "A Simple Sequentially Rejective Multiple Test Procedure" (1979).

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[at]))
        adjusted[at] = largest
    return adjusted


def means_by_task(values: Sequence[float], tasks: Sequence[str]) -> list[float]:
    """Return the mean of each task's values, in the order in which tasks first occur.

    Example:
        >>> means_by_task([1.0, 0.0, 1.0], ["a", "a", "b"])
        [0.5, 1.0]
    """
    by_task: dict[str, list[float]] = {}
    for task, value in zip(tasks, values, strict=True):
        by_task.setdefault(task, []).append(value)
    return [sum(some) / len(some) for some in by_task.values()]


def task_interval(values: Sequence[float], tasks: Sequence[str]) -> Estimate:
    """Return the mean over tasks of each task's mean, with its bootstrap interval, for which tasks are resampled.

    Example:
        >>> print(task_interval([1.0, 0.0, 1.0, 1.0], ["a", "a", "b", "c"]))
        0.833 [0.5, 1]
    """
    return mean_interval(means_by_task(values, tasks))


def difference_interval(differences: Sequence[float]) -> Estimate:
    """Return the mean of tasks' differences of success with its 95 % interval, which has a width where all are equal.

    The interval is Wald's with two more tasks, one that A alone solves and one that B alone solves, and with Student's
    t. A bootstrap interval of equal differences has no width, and one of few or rare differences contains the true one
    too seldom. :func:`difference_p_value` belongs to it, so that both give one verdict.

    Source: D. G. Bonett and R. M. Price, "Adjusted Wald Confidence Interval for a Difference of Binomial Proportions
    Based on Paired Data" (2012), here for means of several episodes, too.

    Args:
        differences: the mean difference of each task, from -1 to 1.

    Raises:
        ValueError: there are no differences.

    Example:
        >>> print(difference_interval([1.0, 1.0, 1.0]), difference_interval([0.0] * 100), sep="; ")
        1 [-0.511, 1]; 0 [-0.0276, 0.0276]
    """
    if not differences:
        raise ValueError("an interval needs at least one difference")
    mean, error = _with_two_more(differences)
    half = _student(len(differences) + 1) * error
    return Estimate(fmean(differences), max(-1.0, mean - half), min(1.0, mean + half))


def _with_two_more(differences: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error with two more tasks, of differences 1 and -1."""
    more = [*differences, 1.0, -1.0]
    return fmean(more), float(np.std(more, ddof=1)) / math.sqrt(len(more))


def difference_p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p-value that belongs to :func:`difference_interval`: below 0.05 if that excludes 0.

    Where tasks are few, or differ rarely, it is larger than that of an exact test of the same pairs.

    Args:
        differences: the mean difference of each task, from -1 to 1.

    Example:
        >>> round(difference_p_value([1.0] * 9 + [-1.0]), 3), difference_p_value([0.0] * 100)
        (0.013, 1.0)
    """
    mean, error = _with_two_more(differences)
    return _student_tails(abs(mean) / error, len(differences) + 1)


def _student_tails(t: float, degrees: int) -> float:
    """Return the probability that Student's t is at least ``t`` away from 0.

    Source: M. Abramowitz and I. A. Stegun, "Handbook of Mathematical Functions" (1964), 26.7.3 and 26.7.4.

    Example:
        >>> [round(_student_tails(*one), 4) for one in ((12.7062, 1), (4.3027, 2), (2.2281, 10), (1.9602, 9999))]
        [0.05, 0.05, 0.05, 0.05]
    """
    angle = math.atan(t / math.sqrt(degrees))
    is_odd, square = degrees % 2, math.cos(angle) ** 2
    term = math.cos(angle) if is_odd else 1.0
    total = 0.0
    for at in range(2 + is_odd, degrees + 1, 2):
        total += term
        term *= square * (at - 1) / at
    inside = math.sin(angle) * total
    return max(0.0, 1 - (2 / math.pi * (angle + inside) if is_odd else inside))


def detectable_difference(differences: Sequence[float], power: float = 0.8) -> float:
    """Return the smallest true difference that a paired comparison of so many tasks detects with probability ``power``.

    Detecting means that the 95 % interval excludes zero. Normal approximation, with the standard error of
    :func:`difference_interval`. Above 1 the tasks are too few to detect any difference.

    Args:
        differences: the mean difference of each task.

    Example:
        >>> round(detectable_difference([1.0, 0.0, 0.0, -1.0] * 25), 3), detectable_difference([0.0]) > 1
        (0.199, True)
    """
    z = NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(power)
    return z * _with_two_more(differences)[1]


def tasks_needed(differences: Sequence[float], power: float = 0.8) -> int | None:
    """Return the number of tasks needed to detect the mean of these differences with probability ``power``.

    Return None if the mean is 0, which no number of tasks can detect.

    Example:
        >>> tasks_needed([1.0, 0.0, 0.0, -1.0, 0.0, 1.0] * 10)
        137
    """
    mean = float(np.mean(differences))
    if mean == 0 or len(differences) < 2:
        return None
    return math.ceil(len(differences) * (detectable_difference(differences, power) / mean) ** 2)
