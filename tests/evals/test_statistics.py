"""Golden numbers of the intervals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.evals.statistics import mean_interval, wilson_interval


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
