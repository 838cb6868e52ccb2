"""Every row of the speed table can be measured: each script runs at a tiny size, and says what the row reads."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from agentgym.trainers.models.sources import cached_model

FOLDER = Path(__file__).parents[1] / "benchmarks" / "table"
OF_PROCESSES = ("start", "household", "gui", "sandbox")
"""Scripts that measure the processor time of processes that they start, or start browsers and sandboxes."""
NEEDS = {
    "docker": pytest.mark.docker,
    "browser": pytest.mark.gui,
    "smollm2": pytest.mark.skipif(cached_model("smollm2") is None, reason="needs agentgym model import smollm2"),
}


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("speed_table", FOLDER / "measure.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SPEED_TABLE = load()
TABLE = SPEED_TABLE.read_table()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[NEEDS[script["needs"]]] if "needs" in script else [])
        for name, script in TABLE["script"].items()
        if name != "vs_trl"  # takes a minute; tests/test_vs_trl_benchmark.py reads its rows
    ],
)
def test_a_script_gives_the_figures_of_its_rows(name: str, tmp_path: Path, warm_run: Callable[..., str]) -> None:
    words = [FOLDER / "measure.py", "--tiny", "--scripts", name, "--output", tmp_path / "table"]
    if name in OF_PROCESSES:
        subprocess.run([sys.executable, *map(str, words)], check=True)
    else:
        warm_run(*words)
    figures = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    assert set(figures) == {row["job"] for row in TABLE["row"] if row["script"] == name}
    # a policy that has hardly been trained may have no success
    assert all(one["now"] > 0 or "success" in job for job, one in figures.items())
    assert all(one["commit"] and one["date"] for one in figures.values())
    page = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert page.count("not measured | |") == len(TABLE["row"]) - len(figures)


def test_every_row_names_a_script_and_every_script_has_a_row() -> None:
    assert {row["script"] for row in TABLE["row"]} == set(TABLE["script"])
    assert len({row["job"] for row in TABLE["row"]}) == len(TABLE["row"])


def test_an_item_is_found_by_what_it_says() -> None:
    result = {"rows": [{"turns": 5, "s": 1.0}, {"turns": 10, "s": 2.0}]}
    assert SPEED_TABLE.figure(result, ["rows", {"turns": 10}, "s"]) == 2.0
    with pytest.raises(LookupError, match="0 rows say"):
        SPEED_TABLE.figure(result, ["rows", {"turns": 7}, "s"])


def test_a_row_may_be_the_quotient_of_two_figures() -> None:
    row = {"job": "quotient", "read": ["slow"], "per": ["fast"]}
    found = SPEED_TABLE.measured([row], [{"slow": 6.0, "fast": 2.0}, {"slow": 5.0, "fast": 2.0}], load=0.5)
    assert (found["quotient"]["lowest"], found["quotient"]["highest"]) == (2.5, 3.0)


def test_an_aim_is_reached_from_its_own_side() -> None:
    rows = [
        {"job": "slow", "unit": "ms", "before": "9", "aim": 5.0},
        {"job": "many", "unit": "per s", "before": "1", "aim": 5.0, "more_is_better": True},
    ]
    about = {"lowest": 4.0, "highest": 4.0, "machine": "m", "date": "d", "commit": "c"}
    lines = SPEED_TABLE.markdown({"row": rows}, {row["job"]: {"now": 4.0, **about} for row in rows}).splitlines()
    assert [line.rpartition("| ")[2] for line in lines if line.startswith(("| slow", "| many"))] == ["yes |", "no |"]


def test_a_busy_machine_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (2.0, 2.0, 2.0))
    assert not SPEED_TABLE.wait_until_quiet(0.0)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 2.0, 2.0))
    assert SPEED_TABLE.wait_until_quiet(0.0)
