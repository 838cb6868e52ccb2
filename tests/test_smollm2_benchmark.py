"""The measurement of learning with a real model runs, with a small model in its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHANGES = ["num_steps=1", "sft.num_demos=16", "eval.num_episodes=2", "groups_per_step=1", "eval.base=true"]


@pytest.mark.slow
def test_runs_are_measured_once_and_tabulated(warm_run: Callable[..., str], tmp_path: Path) -> None:
    def measure(*seeds: str) -> list[dict[str, object]]:
        arms = ["--recipe", "household-smoke", "--arms", "gigpo", "--seeds", *seeds]
        warm_run("benchmarks/smollm2/learning.py", *arms, "--output", tmp_path / "learning", "--", *CHANGES)
        rows: list[dict[str, object]] = json.loads((tmp_path / "learning.json").read_text(encoding="utf-8"))
        return rows

    (row,) = measure("0")
    assert (row["arm"], row["seed"], row["num_trajectories"], row["changes"]) == ("gigpo", 0, 4, CHANGES)
    again = measure("0", "1")
    assert again[0] == row, "what was measured is kept"
    page = (tmp_path / "learning.md").read_text(encoding="utf-8")
    assert page.count("| gigpo |") == 2 and "gigpo, mean of 2 seeds" in page
