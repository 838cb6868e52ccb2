"""agentgym view: the report's path, and folders that are no run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Command = Callable[..., Any]


def test_view_of_an_evaluation(run: Command, guess: str) -> None:
    folder = run("eval", guess, "--policy", "oracle", "--episodes", "2", "--json").json["run_dir"]
    assert run("view", folder, "--json").json == {"report": f"{folder}/report.html"}
    assert run("view", folder).out == f"{folder}/report.html\n"
    assert "<title>eval-guess-v0-001" in Path(folder, "report.html").read_text()


def test_view_of_something_else(run: Command, guess: str, tmp_path: Path) -> None:
    assert "no folder 'nowhere'" in run("view", "nowhere").assert_one_line_error()
    assert "is no run" in run("view", str(tmp_path)).assert_one_line_error()
    folder = run("eval", guess, "--policy", "oracle", "--episodes", "2", "--json").json["run_dir"]
    Path(folder, "episodes.jsonl.gz").write_bytes(b"not gzip")
    assert "cannot be read" in run("view", folder, "--json").assert_one_line_error()
