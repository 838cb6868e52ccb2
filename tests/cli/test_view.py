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


def test_episodes_are_printed_message_by_message(run: Command, guess: str, tmp_path: Path) -> None:
    folder = run("eval", guess, "--policy", "oracle", "--episodes", "3", "--json").json["run_dir"]
    lines = run("view", folder, "--episodes", "2").out.splitlines()
    assert lines[0] == f"{folder}/report.html"
    shown = [line.split() for line in lines[1:] if line]
    assert [words[0] for words in shown] == ["task", "env", "agent", "tool"] * 2
    assert "success, return 1, completed" in lines[2]
    assert lines[3] == "  env   Guess my [number] between 1 and 10."
    assert lines[5] == "  tool  Correct."
    (tmp_path / "run" / "rollouts").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text("{}")
    assert "has no evaluation" in run("view", str(tmp_path / "run"), "--episodes", "1").err
