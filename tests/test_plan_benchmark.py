"""The plan from 1 to 1,000 GPUs: its page is what its numbers say, and its numbers are what the script gives."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "plan"


@pytest.fixture(scope="module")
def plan() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_plan", FOLDER / "plan.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmark_plan"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_committed_numbers(plan: ModuleType) -> None:
    committed = json.loads((FOLDER / "plan.json").read_text(encoding="utf-8"))
    text = plan.table(committed["rows"])
    assert (FOLDER / "plan.md").read_text(encoding="utf-8") == text + "\n"
    assert text in (FOLDER.parents[1] / "docs" / "scale.md").read_text(encoding="utf-8")
    assert committed["inputs"]["measured"] == pytest.approx(plan.measured())


def test_the_script_gives_the_committed_numbers(plan: ModuleType) -> None:
    committed = json.loads((FOLDER / "plan.json").read_text(encoding="utf-8"))["rows"]
    first = committed[0]
    again = plan.row(1, "sync", 0, 0.5, plan.Device().fp32_flops, first["trainer"])
    assert again == pytest.approx(first)


def test_nobody_waits_for_nothing(plan: ModuleType) -> None:
    for row in json.loads((FOLDER / "plan.json").read_text(encoding="utf-8"))["rows"]:
        assert row["staleness_mean"] <= row["max_staleness"]
        assert 0 < row["engine_busy"] <= 1 and 0 < row["trainer_busy"] <= 1
        assert row["gpus"] == 1 or row["engines"] + row["trainers"] == row["gpus"]
