"""Charts and token texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.report.charts import (
    Frame,
    Point,
    interval_chart,
    line_chart,
    moving_average,
    stacked_chart,
    thinned,
    ticks,
)
from agentgym.report.token_text import TokenText
from agentgym.report.traces import coarse_to_fine

values = st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda x: round(x, 6))


@given(values, values)
def test_ticks_cover_the_interval_with_few_round_numbers(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    marks = ticks(low, high)
    assert 2 <= len(marks) <= 8
    slack = 1e-6 * max(1.0, high - low)
    assert marks[0] <= low + slack
    assert marks[-1] >= high - slack


def test_moving_average_and_thinning() -> None:
    assert moving_average([1.0, 2.0, 3.0, 4.0], 3) == [1.0, 1.5, 2.0, 3.0]
    xs, ys = thinned(range(1000), [math.nan if x == 5 else float(x) for x in range(1000)], max_points=100)
    assert len(xs) <= 100
    assert xs[-1] == 999
    assert sum(math.isnan(y) for y in ys) == 0


def test_a_curve_lies_inside_its_frame() -> None:
    frame = Frame(width=100, height=50, left=10, right=5, top=2, bottom=8)
    chart = str(line_chart([0, 1, 2], [0.0, 1.0, 0.5], frame=frame))
    points = [tuple(map(float, p.split(","))) for p in chart.partition('points="')[2].partition('"')[0].split()]
    assert all(10 <= x <= 95 and 2 <= y <= 42 for x, y in points)
    assert points[1][1] == 2.0  # the largest value is at the top
    assert 'viewBox="0 0 100 50"' in chart


def test_degenerate_charts() -> None:
    assert "no values" in line_chart([], [])
    assert "no values" in line_chart([1.0], [math.nan])
    assert "<circle" in line_chart([3.0], [0.0])
    assert "no values" in stacked_chart([], [])
    assert "<line" in line_chart([], [], points=[Point(0, 0.5, 0.4, 0.6, "an evaluation")])
    assert "&lt;b&gt;" in interval_chart([Point(0, 0.5, 0.4, 0.6, "<b>")], frame=Frame())


class Bytes:
    """A decoder whose tokens are bytes."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        return bytes(token_ids).decode(errors="replace")


@pytest.mark.parametrize("text", ["go_to: fridge 1", "", "naïve – 日本 🙂!"])
def test_pieces_join_to_the_text(text: str) -> None:
    pieces = TokenText(Bytes()).pieces(tuple(text.encode()))
    assert "".join(pieces) == text
    assert len(pieces) == len(text.encode())


def test_a_character_that_is_never_finished() -> None:
    assert TokenText(Bytes()).pieces(tuple("日".encode()[:2]))[-1] == "\ufffd"


@given(st.integers(0, 300))
def test_coarse_to_fine_is_even_at_every_length(num_values: int) -> None:
    order = coarse_to_fine(range(num_values))
    assert sorted(order) == list(range(num_values))
    assert order[:2] == [0, num_values - 1][:num_values]
    for num_taken in (5, 9, 33):
        taken = sorted(order[:num_taken])
        widest = max((after - before for before, after in pairwise(taken)), default=0)
        assert widest <= 3 * max(1, num_values / num_taken)
