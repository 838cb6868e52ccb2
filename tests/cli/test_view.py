"""agentgym view: the report's path, and folders that are no run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


def test_view_of_an_evaluation(run: Command, guess: str) -> None:
    folder = run("eval", guess, "--policy", "oracle", "--episodes", "2", "--json").json["run_dir"]
    assert run("view", folder, "--json").json == {"report": f"{folder}/report.html"}
    assert run("view", folder).out == f"{folder}/report.html\n"
    assert "<title>eval-guess-v0-001" in Path(folder, "report.html").read_text()


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_folder_whose_name_is_not_utf8(encoding: str, run: Command, guess: str, tmp_path: Path) -> None:
    made = run("eval", guess, "--policy", "oracle", "--episodes", "2", "--json").json["run_dir"]
    folder = Path(made).rename(os.fsdecode(os.fsencode(tmp_path) + b"/r\xff"))
    command: list[str | Path] = [sys.executable, "-m", "agentgym", "view", folder, "--episodes", "1"]
    env = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"}
    done = subprocess.run(command, capture_output=True, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines()[0].decode() == f"{tmp_path}/r\\udcff/report.html"
    assert "<title>r?" in (folder / "report.html").read_text()


def test_view_of_something_else(run: Command, guess: str, tmp_path: Path) -> None:
    assert "no folder 'nowhere'" in run("view", "nowhere").assert_one_line_error()
    assert "is not a run" in run("view", str(tmp_path)).assert_one_line_error()
    folder = run("eval", guess, "--policy", "oracle", "--episodes", "2", "--json").json["run_dir"]
    Path(folder, "episodes.jsonl.gz").write_bytes(b"not gzip")
    assert "cannot be read" in run("view", folder, "--json").assert_one_line_error()


def test_the_folder_of_several_runs(run: Command, guess: str, tmp_path: Path) -> None:
    for number in range(4):
        run("eval", guess, "--policy", "oracle", "--episodes", "1", "--run-dir", f"all/{number}")
        os.utime(f"all/{number}", (number, number))
    (tmp_path / "all" / "notes").mkdir()
    for command in (("view", "all"), ("compare", "all", "all/0"), ("train", "--resume", "all")):
        told = run(*command).assert_one_line_error()
        assert "; name one of the runs in it: all/3, all/2, all/1, ..." in told


def test_episodes_are_printed_message_by_message(run: Command, guess: str, tmp_path: Path) -> None:
    folder = run("eval", guess, "--policy", "oracle", "--episodes", "3", "--json").json["run_dir"]
    lines = run("view", folder, "--episodes", "2").out.splitlines()
    assert lines[0] == f"{folder}/report.html"
    shown = [line.split() for line in lines[1:] if line]
    assert [words[0] for words in shown] == ["task", "env", "agent", "tool"] * 2
    assert "success, return 1, completed" in lines[2]
    assert lines[3] == "  env   Guess my [number] between 1 and 10."
    assert lines[5] == "  tool  Correct.  [reward +1]"
    (tmp_path / "run" / "rollouts").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text("{}")
    assert "has no episode to show yet" in run("view", str(tmp_path / "run"), "--episodes", "1").err


def test_plot(run: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "config.json").write_text('{"recipe": "demo", "seed": 0}')
    rows = [{"phase": "rl", "step": step, "success": step / 4} for step in range(1, 5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    value = run("plot", str(folder), "-o", "fig.svg", "--json").json
    assert value["lines"][0]["mean"] == [0.25, 0.5, 0.75, 1.0]
    assert Path("fig.svg").is_file()
    assert "r, 1 run: 0.25 to 1" in run("plot", str(folder), "-o", "fig.svg").out
    assert "no folder 'nowhere'" in run("plot", "nowhere", "-o", "fig.svg").assert_one_line_error()
