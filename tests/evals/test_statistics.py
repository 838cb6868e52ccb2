"""Golden numbers of the intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.evals.statistics import (
    best_of,
    chosen_of,
    clustered_interval,
    detectable_difference,
    difference_interval,
    difference_p_value,
    mean_interval,
    pass_all,
    pass_at,
    tasks_needed,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [  # R. G. Newcombe, "Two-sided confidence intervals for the single proportion" (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_golden(successes: int, trials: int, low: float, high: float) -> None:
    estimate = wilson_interval(successes, trials)
    assert estimate.value == successes / trials
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("successes", "trials"), [(1, 3), (5, 10), (99, 100)])
def test_wilson_ends_solve_the_score_equation(successes: int, trials: int) -> None:
    estimate = wilson_interval(successes, trials, z=1.5)
    for end in (estimate.low, estimate.high):
        assert (estimate.value - end) ** 2 == pytest.approx(1.5**2 * end * (1 - end) / trials)


@given(st.integers(0, 500), st.integers(1, 500))
def test_wilson_holds_the_rate_and_narrows(successes: int, trials: int) -> None:
    successes = min(successes, trials)
    few, many = wilson_interval(successes, trials), wilson_interval(successes * 4, trials * 4)
    assert 0 <= few.low <= few.value <= few.high <= 1
    assert many.high - many.low < few.high - few.low


def test_wilson_of_nothing_and_of_nonsense() -> None:
    assert (wilson_interval(0, 0).low, wilson_interval(0, 0).high) == (0.0, 1.0)
    with pytest.raises(ValueError, match="2 of 1"):
        wilson_interval(2, 1)


def test_mean_interval_is_a_function_of_its_input() -> None:
    values = [float(i % 7) for i in range(50)]
    first, second = mean_interval(values), mean_interval(values)
    assert first == second
    assert first.low < first.value < first.high
    assert first.value == pytest.approx(sum(values) / 50)
    # 1.96 standard errors, which the bootstrap must come near to
    assert first.high - first.value == pytest.approx(1.96 * 2.0 / 50**0.5, rel=0.15)
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([])


# ------------------------------------------------------------------------------------------- repeats of a task


def drawn(
    num_tasks: int, sizes: Sequence[int], shape: tuple[float, float], rng: np.random.Generator
) -> list[list[bool]]:
    """Trials of tasks whose rates are from a beta distribution."""
    rates = rng.beta(*shape, num_tasks)
    return [[bool(won) for won in rng.random(rng.choice(sizes)) < rate] for rate in rates]


@pytest.mark.parametrize("sizes", [(1,), (4,), (1, 4, 8)])
@pytest.mark.parametrize("shape", [(1.0, 1.0), (0.2, 0.2), (8.0, 8.0), (3.0, 0.8)])
def test_intervals_hold_the_true_rate_in_95_of_100_evaluations(
    sizes: tuple[int, ...], shape: tuple[float, float]
) -> None:
    rng = np.random.default_rng(1)
    truth, num_tries = shape[0] / sum(shape), 800
    held = 0
    for _ in range(num_tries):
        estimate = clustered_interval(drawn(60, sizes, shape, rng))
        held += estimate.low <= truth <= estimate.high
    assert 0.93 <= held / num_tries <= 0.97


def test_taking_repeats_for_other_tasks_would_hold_it_less_often() -> None:
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(300):
        trials = list(itertools.chain.from_iterable(drawn(60, (8,), (0.3, 0.3), rng)))
        estimate = wilson_interval(sum(trials), len(trials))
        held += estimate.low <= 0.5 <= estimate.high
    assert held / 300 < 0.7


def test_clustered_interval_at_its_ends() -> None:
    single = [[True], [False], [True]]
    assert clustered_interval(single) == wilson_interval(2, 3)
    # trials that all agree within their task say as much as one each, with Student's t for few tasks
    alike = clustered_interval([[True] * 5, [False] * 5, [True] * 5])
    assert alike.low < wilson_interval(2, 3).low
    assert alike.high > wilson_interval(2, 3).high
    assert clustered_interval([[True] * 4] * 10).high == 1.0
    assert clustered_interval([[True] * 4] * 10).low == pytest.approx(0.66, abs=0.02)  # of ten tasks, not of forty
    # trials as independent as can be say no more than all of them together
    mixed = clustered_interval([[True, False]] * 50)
    assert mixed.high - mixed.low == pytest.approx(
        wilson_interval(50, 100).high - wilson_interval(50, 100).low, rel=0.05
    )
    assert clustered_interval([[], [True, False]]).value == 0.5


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.integers(1, 7))
def test_pass_at_and_all_against_every_draw(trials: list[bool], k: int) -> None:
    if k > len(trials):
        for count in (pass_at, pass_all):
            with pytest.raises(ValueError, match=f"needs {k} trials"):
                count(len(trials), sum(trials), k)
        return
    draws = list(itertools.combinations(trials, k))
    assert pass_at(len(trials), sum(trials), k) == pytest.approx(fmean(any(draw) for draw in draws))
    assert pass_all(len(trials), sum(trials), k) == pytest.approx(fmean(all(draw) for draw in draws))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=7), st.integers(1, 7))
def test_best_of_against_every_draw(quarters: list[int], k: int) -> None:
    scores = [quarter / 4 for quarter in quarters]
    if k > len(scores):
        with pytest.raises(ValueError, match=f"needs {k} scores"):
            best_of(scores, k)
        return
    assert best_of(scores, k) == pytest.approx(fmean(max(draw) for draw in itertools.combinations(scores, k)))


@given(
    st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=6, unique_by=lambda p: p[0]),
    st.integers(1, 6),
)
def test_chosen_of_against_every_draw(pairs: list[tuple[int, bool]], k: int) -> None:
    if k > len(pairs):
        return
    wanted = fmean(float(max(draw)[1]) for draw in itertools.combinations(pairs, k))
    assert chosen_of([float(score) for score, _ in pairs], [float(won) for _, won in pairs], k) == pytest.approx(wanted)


# --------------------------------------------------------------------------------------------------- two policies


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=60))
def test_interval_and_p_value_give_one_verdict(differences: list[float]) -> None:
    interval, p = difference_interval(differences), difference_p_value(differences)
    assert (not interval.low <= 0 <= interval.high) == (p < 0.05) or p == pytest.approx(0.05, abs=1e-4)
    assert 0 <= p <= 1
    assert difference_p_value([-value for value in differences]) == pytest.approx(p)


def test_few_pairs_are_found_different_as_seldom_as_by_an_exact_test() -> None:
    # five pairs of five: McNemar's exact test has p = 0.0625; nine of ten: 0.021
    assert difference_p_value([1.0] * 9 + [-1.0]) < 0.05 < difference_p_value([1.0] * 7 + [-1.0] * 3)
    for number in (5, 8, 10, 16):
        tails = 0.0
        for won in range(number + 1):
            differences = [1.0] * won + [-1.0] * (number - won)
            tails += math.comb(number, won) / 2**number * (difference_p_value(differences) < 0.05)
        assert tails < 0.065


@pytest.mark.parametrize("sizes", [(1,), (4,)])
def test_two_equal_policies_differ_in_at_most_5_of_100_comparisons(sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    num_tries, num_outside = 400, 0
    for _ in range(num_tries):
        rates = rng.beta(1.0, 1.0, 60)
        gains, tasks = [], []
        for task, rate in enumerate(rates):
            won = rng.random((2, sizes[0])) < rate
            gains += [float(b) - float(a) for a, b in won.T]
            tasks += [str(task)] * sizes[0]
        by_task = [fmean(gains[at : at + sizes[0]]) for at in range(0, len(gains), sizes[0])]
        interval = difference_interval(by_task)
        num_outside += not interval.low <= 0 <= interval.high
    assert num_outside / num_tries <= 0.065  # 5 of 100, and what 400 tries vary


@pytest.mark.parametrize(
    ("num_tasks", "rates"), [(5, (0.9, 0.95)), (10, (0.97, 0.98)), (20, (0.5, 0.9)), (100, (0.02, 0.05))]
)
def test_an_interval_of_few_or_rare_differences_contains_the_true_one(
    num_tasks: int, rates: tuple[float, float]
) -> None:
    rng = np.random.default_rng(5)
    num_inside = 0
    for _ in range(500):
        a, b = (rng.random(num_tasks) < rate for rate in rates)
        interval = difference_interval([float(y) - float(x) for x, y in zip(a, b, strict=True)])
        num_inside += interval.low <= rates[1] - rates[0] <= interval.high
    assert num_inside / 500 >= 0.93


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=40))
def test_an_interval_contains_the_difference_and_has_a_width(differences: list[float]) -> None:
    interval = difference_interval(differences)
    assert -1 <= interval.low <= interval.value <= interval.high <= 1
    assert interval.high - interval.low > 0.03


def test_power_is_what_was_asked_for() -> None:
    rng = np.random.default_rng(4)
    scatter = [1.0, 0.0, 0.0, -1.0] * 25
    gain = detectable_difference(scatter)
    assert gain == pytest.approx(2.8016 * np.std(scatter, ddof=1) / 10, rel=0.01)
    found = 0
    for _ in range(600):
        sample = rng.normal(gain, np.std(scatter, ddof=1), 100)
        found += abs(sample.mean()) > 1.96 * sample.std(ddof=1) / 10
    assert found / 600 == pytest.approx(0.8, abs=0.05)
    assert tasks_needed([1.0, -1.0]) is None
    assert tasks_needed([1.0]) is None
    many = tasks_needed([1.0, 0.0, 0.0, 1.0, -1.0] * 20)
    assert many is not None
    # with so many tasks of the same scatter the difference is the least that is found
    assert float(Fraction(1, 5)) == pytest.approx(
        detectable_difference([1.0, 0.0, 0.0, 1.0, -1.0] * (many // 5)), rel=0.03
    )
