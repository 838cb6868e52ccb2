"""Numbers as people and models write them, read by the scorer ``numeric``."""

from __future__ import annotations

import pytest

from agentgym.envs.games.try_again import normalised
from agentgym.scoring.numbers import read_number, without_groups
from agentgym.scoring.scorers.numeric import numeric

LONG = 20_000


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("134 000", 134000.0),
        ("134\u00a0000", 134000.0),
        ("1\u202f234\u202f567.5", 1234567.5),
        ("1\u2009234", 1234.0),
        ("12'345'678", 12345678.0),
        ("1\u2019234.5", 1234.5),
        ("10_000", 10000.0),
        ("about 1 234 567 people", 1234567.0),
        ("-1 000 %", -10.0),
        ("1 234,56", 1234.56),
        ("1.234.567", 1234567.0),
        ("1.234,56", 1234.56),
        ("1.234.567,89", 1234567.89),
        ("1.234", 1.234),
        ("1,234", 1234.0),
        ("1,234,567.5", 1234567.5),
        ("1,5", 5.0),
        ("1,000,2", 2.0),
        ("[0.123,0.456]", 0.456),
        ("10 000,20 000", 20000.0),
        ("1 000/4", 250.0),
        ("3.5 200", 200.0),
        ("12 345 6", 6.0),
        ("in 5 2024", 2024.0),
        ("0 100", 100.0),
        ("1.5 × 10^6", 1.5e6),
        (r"1.5 \times 10^{-3}", 1.5e-3),
        ("3x10**8", 3e8),
        ("5·10⁸", 5e8),
        ("-10^3", -1000.0),
        ("6.02e23", 6.02e23),
        ("3/4", 0.75),
        (r"\boxed{\$9{,}500}", 9500.0),
        (r"\boxed{8,000}", 8000.0),
        (r"12\,345 people", 12345.0),
        ("The total is 72 clips, altogether.", 72.0),
        ("12\u00a0%", 0.12),
    ],
)
def test_a_number_is_read_whole(text: str, number: float) -> None:
    assert read_number(text) == pytest.approx(number, rel=1e-12)
    assert numeric(text, [repr(number)], 1e-9, 0.0) == 1.0
    assert numeric(text, ["0"], 1e-9, 0.0) == 0.0


@pytest.mark.parametrize("text", ["", "none", "a/b", "1/0", "1e999", "10^999", "9" * 5000])
def test_what_is_no_number(text: str) -> None:
    assert read_number(text) is None


@pytest.mark.parametrize("part", ["1 234 ", "1.234.", "1,", "10^", "9", "1'", "1 x 10 ", "/1"])
def test_long_texts_are_read_in_linear_time(part: str) -> None:
    assert isinstance(read_number(part * LONG), float | None)  # backtracking would take hours
    assert len(without_groups(part * LONG)) <= len(part) * LONG


def test_groups_are_removed_alone() -> None:
    assert without_groups("1,250 and 1 250, 2, 3.125 000") == "1250 and 1250, 2, 3.125 000"
    assert normalised("1 250") == normalised("1,250") == normalised("1250.0") == "1250"


def test_the_form_of_another_country_is_scored() -> None:
    for answer, reference, score in (("134 000", "134000", 1.0), ("10 000", "0", 0.0), ("134000", "134 000", 1.0)):
        assert numeric(answer, [reference], 1e-9, 0.0) == score
