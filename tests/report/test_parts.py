"""Charts and token texts."""

from __future__ import annotations

import hashlib
import html
import json
import math
import re
import tomllib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.report.charts import Beside, Point, line_chart, moving_average, stacked_chart, thinned
from agentgym.report.token_text import TokenText
from agentgym.report.traces import coarse_to_fine

VENDORED = Path("agentgym/report/vendor")


def drawn(chart: str) -> dict[str, Any]:
    """Return the data of a chart."""
    found = re.search(r'data-chart="([^"]*)"', chart)
    assert found is not None
    data: dict[str, Any] = json.loads(html.unescape(found.group(1)))
    return data


def test_vendored_files_are_as_they_were_published() -> None:
    listed = tomllib.loads((VENDORED / "versions.toml").read_text())
    for name, about in listed.items():
        there = {path.name for path in (VENDORED / name).iterdir()}
        assert there == set(about["sha256"]) and "LICENSE.txt" in there
        for file, expected in about["sha256"].items():
            assert hashlib.sha256((VENDORED / name / file).read_bytes()).hexdigest() == expected, file
        code = next((VENDORED / name).glob("*.js")).read_text()
        assert f"(v{about['version']})" in code


def test_moving_average_and_thinning() -> None:
    assert moving_average([1.0, 2.0, 3.0, 4.0], 3) == [1.0, 1.5, 2.0, 3.0]
    xs, ys = thinned(range(1000), [math.nan if x == 5 else float(x) for x in range(1000)], max_points=100)
    assert len(xs) <= 100
    assert xs[-1] == 999
    assert sum(math.isnan(y) for y in ys) == 0


def test_a_curve_and_the_one_beside_it_share_their_steps() -> None:
    beside = Beside(name="other", xs=[2, 3], ys=[0.5, 0.25], points=[Point(4, 0.5, 0.4, 0.6, "evaluation")])
    chart = str(line_chart([1, 2], [0.0, 1.0], name="success", show="share", beside=beside))
    data = drawn(chart)
    assert data["x"] == [1, 2, 3, 4]
    assert {one["name"]: (one["style"], one["y"]) for one in data["series"]} == {
        "other": ("dashed", [None, 0.5, 0.25, None]),
        "other, evaluation": ("hollow", [None, None, None, 0.5]),
        "success": ("line", [0.0, 1.0, None, None]),
    }
    assert 'aria-label="success: 0% at step 1 to 100% at step 2, between 0% and 100%"' in chart


def test_a_long_curve_has_a_moving_average() -> None:
    data = drawn(str(line_chart(range(24), [float(at) for at in range(24)], name="loss")))
    raw, mean = data["series"]
    assert (raw["style"], mean["name"]) == ("faint", "loss, mean of 2")
    assert mean["y"][-1] == 22.5


def test_stacks_are_drawn_from_the_top_and_tell_their_own_values() -> None:
    data = drawn(str(stacked_chart([1, 2], [("a", "c0", [1.0, 2.0]), ("b", "c1", [10.0, 20.0])])))
    assert [(one["name"], one["y"], one["shown"]) for one in data["series"]] == [
        ("b", [11.0, 22.0], [10.0, 20.0]),
        ("a", [1.0, 2.0], [1.0, 2.0]),
    ]


def test_degenerate_charts() -> None:
    assert "no values" in line_chart([], [])
    assert "no values" in line_chart([1.0], [math.nan])
    assert drawn(str(line_chart([3.0], [0.0])))["x"] == [3.0]
    assert "no values" in stacked_chart([], [])
    dots = str(line_chart([], [], points=[Point(0, 0.5, 0.4, 0.6, "<b>")]))
    assert drawn(dots)["series"][0]["low"] == [0.4] and 'aria-label="&lt;b&gt;"' in dots


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


def test_tasks_are_in_the_order_of_parts_and_names() -> None:
    """Episodes end in any order, and ``test-10`` is not the second task."""
    from agentgym.report.models import _in_order

    ended = [
        ("far", "test-10"),
        ("near", "test-2"),
        ("far", "test-9"),
        ("near", "b"),
        ("far", "test-10"),
        ("near", "a1b"),
    ]
    rows = [{"part": part, "task_id": name, "trial": trial} for trial, (part, name) in enumerate(ended)]
    assert [row["trial"] for row in _in_order(rows)] == [2, 0, 4, 5, 3, 1]


FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1", "\u200b=1", "\ufeff  =cmd|'/C calc'!A0", "\rx")


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_of_the_csv_is_a_formula(text: str) -> None:
    from agentgym.report.models import _safe

    assert _safe(text) == f"'{text}"
    assert [_safe(value) for value in ("a=1", "Łódź", 3.5, -1, None, "")] == ["a=1", "Łódź", 3.5, -1, None, ""]
