"""The plan from 1 to 1,000 GPUs: its page is what its numbers say, and its numbers are what the script gives."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
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


def test_what_a_rank_holds_is_what_the_plan_says() -> None:
    committed = json.loads((FOLDER / "ranks.json").read_text(encoding="utf-8"))
    assert [row["ranks"] for row in committed["rows"]] == [1, 2, 8, 64, 1024]
    page = (FOLDER / "ranks.md").read_text(encoding="utf-8")
    table = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    assert table in (FOLDER.parents[1] / "docs" / "scale.md").read_text(encoding="utf-8")
    for row in committed["rows"]:
        assert row["planned_bytes"] == pytest.approx(row["peak_bytes"], rel=0.15)
        assert f"| {row['ranks']:,} | {row['peak_bytes'] / 2**20:,.0f} |" in table


@pytest.mark.slow
def test_a_rank_of_more_holds_less_and_sends_what_arithmetic_says(warm_run: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "ranks.json"
    warm_run(FOLDER / "ranks.py", "--ranks", "1", "2", "8", "--shape", "tiny", "--out", out)
    alone, *others = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert alone["travelled_bytes"] == 0
    held = [alone["peak_bytes"], *(row["peak_bytes"] for row in others)]
    assert held == sorted(held, reverse=True)
    for row in others:
        assert row["travelled_bytes"] == pytest.approx(row["travelled_by_arithmetic"], rel=0.3)
        assert sum(row["planned"][name] for name in ("weights", "gradients", "optimizer")) < held[0]
