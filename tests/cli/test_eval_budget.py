"""An evaluation that may take only so long, or so many tokens, stops, keeps what it has, and goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym.errors import RunStoppedError
from agentgym.evals.budget import Budget
from agentgym.evals.episodes import read_rows
from agentgym.types import Message, Segment, Status, Task, Trajectory, Turn, Usage

Command = Callable[..., Any]


def episode(num_tokens: int) -> Trajectory:
    turn = Turn(index=0, action=Message("assistant", "x"), usage=Usage(5, num_tokens))
    task = Task(id="t", split="test", seed=0)
    return Trajectory(task=task, env_id="x", status=Status.COMPLETED, segments=(Segment((turn,)),), seed=0)


def test_tokens_are_counted() -> None:
    lifted: list[str] = []
    budget = Budget(tokens=100, lift=lifted.append)
    budget.count(None, 60)
    budget.end_episode(episode(60))
    budget.count(None, 40)
    with pytest.raises(RunStoppedError, match="budget of 100 sampled tokens is spent after 2 episodes, which are kept"):
        budget.end_episode(episode(40))
    assert lifted == ["max_tokens"]
    free = Budget()
    for _ in range(3):
        free.count(None, 10**9)
        free.end_episode(episode(10**9))


def test_an_evaluation_goes_on_after_its_budget(run: Command, guess: str) -> None:
    given = ("eval", guess, "highest=3", "--policy", "random", "--episodes", "30", "--num-envs", "2")
    whole = run(*given, "--json").json
    stopped = run(*given, "--run-dir", "few", "--max-minutes", "0.00001").assert_one_line_error(1)
    assert "kept; go on: agentgym eval --resume few" in stopped
    assert 0 < len(read_rows(Path("few"))) < 30
    done = run("eval", "--resume", "few", "--json").json
    apart = {"run_dir": "", "mean_seconds": 0}
    assert {**done, **apart} == {**whole, **apart}


def test_suites_stop_one_after_the_other(run: Command, guess: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        part = f'[[parts]]\nenv = "{guess}"\nnum_tasks = 20\n'
        (tmp_path / f"{name}.toml").write_text(f'name = "{name}"\nversion = 1\n{part}')
    files = [str(tmp_path / f"{name}.toml") for name in ("one", "two")]
    stopped = run("eval", *files, "--policy", "oracle", "--max-minutes", "0.00001", "--num-envs", "2", "--json")
    assert stopped.code == 1
    assert [result["outcome"] for result in stopped.json["results"]] == ["stopped", "stopped"]
    done = run("eval", "--resume", stopped.json["run_dir"], "--json").json
    assert [result["summary"]["num_episodes"] for result in done["results"]] == [20, 20]
