"""The measurements of a training step's options run at a tiny size, and their results are committed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "train_step"
WAYS = ["pieces", "whole", "torch", "torch chunked", "torch chunked, sum"]


@pytest.mark.slow
def test_all_heads_are_measured_and_give_the_same_gradient(warm_run: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "head.json"
    warm_run(FOLDER / "options.py", "head", "--size", "tiny", "--rounds", "1", "--output", out)
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [row["way"] for row in rows] == WAYS
    assert len({round(row["gradient_norm"], 2) for row in rows[:4]}) == 1, "the last weighs all tokens alike"


def test_the_committed_results_are_of_all_ways() -> None:
    heads = json.loads((FOLDER / "head.json").read_text(encoding="utf-8"))
    assert [row["way"] for row in heads["rows"]] == WAYS and heads["commit"]
    layers = json.loads((FOLDER / "compile.json").read_text(encoding="utf-8"))
    assert {row["model"] for row in layers["rows"]} >= {"0.7M"} and layers["commit"]
