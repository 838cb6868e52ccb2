"""Results in a terminal of 80 columns: no number is cut, and none is on another line than its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentgym.cli.main import app
from agentgym.evals.repeats import REPEATS

WORLD = "agentgym/GuessNumber-v0"
SUITE = f"""name = "a-suite-with-a-name-of-some-length"
version = 1
[[parts]]
env = "{WORLD}"
num_tasks = 2
"""


def said(monkeypatch: pytest.MonkeyPatch, columns: int, *words: str) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    done = CliRunner().invoke(app, ["eval", *words])
    assert done.exit_code == 0, done.output
    return done.output


def require_all(printed: str, repeats: dict[str, dict[str, float]], columns: int) -> None:
    lines = printed.splitlines()
    assert max(map(len, lines)) <= columns and "…" not in printed
    assert {"pass_at", "pass_all"} <= repeats.keys()
    for name, values in repeats.items():
        if name in REPEATS:
            assert any(REPEATS[name] in line for line in lines)
        for k, value in values.items() if name in REPEATS else ():
            assert any(f" {k}: {value:.1%}" in line for line in lines), (name, k)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_pass_at_k_of_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    words = (WORLD, "--policy", "random", "--episodes", "2", "--repeats", "40", "--run-dir", str(tmp_path / "r"))
    printed = said(monkeypatch, columns, *words)
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    require_all(printed.partition("look at it")[0], summary["repeats"], columns)
    first = {summary["success"], *(summary["repeats"][name]["1"] for name in ("pass_at", "pass_all"))}
    assert len(first) == 1, "one estimator for one thing"


def test_pass_at_k_of_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.toml").write_text(SUITE)
    words = ("--policy", "random", "--policy", "idle", "--repeats", "40", "--run-dir", str(tmp_path / "r"))
    printed = said(monkeypatch, 80, str(tmp_path / "s.toml"), *words)
    for result in json.loads((tmp_path / "r" / "results.json").read_text()):
        require_all(printed.partition("results: ")[0], result["summary"]["repeats"], 80)
