"""The script that kills runs at random works at a tiny size, and sees what differs."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "kills"


def test_an_evaluation_that_counts_an_episode_twice_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    kills: Any = importlib.import_module("kills")
    rows = [json.dumps({"task_id": f"t-{number}"}) for number in range(kills.NUM_EPISODES)]
    for name, lines in {
        "whole": rows, "same": rows[::-1], "twice": [*rows, rows[0]], "other": [*rows[1:], rows[1]],
    }.items():  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "episodes.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = {name: kills._eval_differs(tmp_path / name, tmp_path / "whole") for name in ("same", "twice", "other")}
    assert found == {"same": "", "twice": "it has 61 episodes", "other": "its episodes are others"}


@pytest.mark.slow
def test_it_runs(tmp_path: Path, warm_run: Callable[..., str]) -> None:
    warm_run(FOLDER / "kills.py", "--kills", "1", "--kinds", "eval", "--output", tmp_path / "out")
    (row,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["rows"]
    assert row["kills"] >= 1 and row["wrong"] == []
