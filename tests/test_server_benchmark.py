"""The measurement of the environment server runs, at a tiny size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_load_is_measured(warm_run: Callable[..., str], tmp_path: Path) -> None:
    small = ["--sessions", "6", "--steps", "3", "--abandoned", "5"]
    warm_run("benchmarks/server/load.py", "--output", tmp_path / "load", *small)
    found = json.loads((tmp_path / "load.json").read_text(encoding="utf-8"))
    assert found["steps"] == 18 and found["steps_per_s"] > 0 and found["reaped_within_s"] > 0
    assert "| steps_per_s |" in (tmp_path / "load.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_guard_is_measured(warm_run: Callable[..., str], tmp_path: Path) -> None:
    warm_run("benchmarks/server/guard.py", "--output", tmp_path / "guard", "--steps", "2")
    found = json.loads((tmp_path / "guard.json").read_text(encoding="utf-8"))
    assert found["websocket"]["ratio"] > 0 and found["http"]["ratio"] > 0
    assert "| http |" in (tmp_path / "guard.md").read_text(encoding="utf-8")
