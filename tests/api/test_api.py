"""What scripts and notebooks call: evaluate, collect rollouts, train."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testkit.counting_runs import config as counting_config
from typer.testing import CliRunner

import agentgym
from agentgym import Env, Message, Task, ToolCall, ToolEnv, tool
from agentgym.cli.main import app
from agentgym.errors import ConfigError, RunStoppedError, UnknownNameError, UsageError
from agentgym.trainers.config.overrides import apply_changes, apply_overrides


class Pick(ToolEnv):
    """Pick the number of the task."""

    max_turns = 3

    def __init__(self, *, most: int = 3, max_turns: int | None = None) -> None:
        super().__init__(max_turns=max_turns)
        self._most = most

    def start(self, task: Task) -> str:
        self._goal = task.seed % self._most
        return f"Pick {self._goal}."

    @tool
    def pick(self, number: int) -> str:
        """Pick a number."""
        self.finish(1.0 if number == self._goal else 0.0)
        return "Picked."


def follows(observation: tuple[Message, ...]) -> ToolCall:
    return ToolCall("pick", {"number": int(observation[0].text.removeprefix("Pick ").rstrip("."))})


def guesses(env: Env, rng: np.random.Generator) -> ToolCall:
    return ToolCall("pick", {"number": int(rng.integers(3))})


def test_the_same_result_as_the_command(tmp_path: Path) -> None:
    found = agentgym.evaluate(
        "agentgym/Household-v0",
        "random",
        kwargs={"num_objects": 3},
        episodes=6,
        repeats=2,
        seed=4,
        run_dir=tmp_path / "a",
    )
    command = "eval agentgym/Household-v0 --policy random num_objects=3 --episodes 6 --repeats 2 --seed 4 --json"
    said = CliRunner().invoke(app, [*command.split(), "--run-dir", str(tmp_path / "b")])
    summary = json.loads(said.stdout)
    assert found.success == summary["success"] and found.summary.repeats == summary["repeats"]
    assert [row["num_turns"] for row in found.rows] == [
        json.loads(line)["num_turns"] for line in (tmp_path / "b" / "episodes.jsonl").read_text().splitlines()
    ]


def test_a_class_and_a_function(tmp_path: Path) -> None:
    right = agentgym.evaluate(Pick, follows, kwargs={"most": 5}, episodes=8, run_dir=tmp_path / "right")
    assert right.success == 1.0 and right.interval[0] > 0.6
    assert right.summary.suite_or_env == "Pick" and right.summary.policy == "follows"
    assert [one.turns[0].action.calls[0].arguments["number"] for one in right.trajectories] == [  # type: ignore[union-attr]
        one.task.seed % 5 for one in right.trajectories
    ]
    guessed = agentgym.evaluate(Pick, guesses, episodes=40, run_dir=tmp_path / "guessed")
    assert 0.0 < guessed.success < 1.0
    again = agentgym.evaluate(Pick, guesses, episodes=40, run_dir=tmp_path / "again")
    assert again.success == guessed.success


def test_inside_a_running_loop(tmp_path: Path) -> None:
    async def notebook() -> tuple[float, int]:
        found = agentgym.evaluate(Pick, follows, episodes=2, run_dir=tmp_path)
        groups = agentgym.collect_rollouts(Pick, follows, tasks=2, group_size=2)
        return found.success, sum(len(group.valid) for group in groups)

    assert asyncio.run(notebook()) == (1.0, 4)


def test_groups_of_rollouts() -> None:
    groups = agentgym.collect_rollouts(Pick, guesses, tasks=3, group_size=4, seed=1)
    assert [group.ordinal for group in groups] == [0, 1, 2]
    assert all(len(group.valid) == 4 and group.task == group.trajectories[0].task for group in groups)
    chosen = [groups[1].task]
    assert agentgym.collect_rollouts(Pick, follows, tasks=chosen)[0].trajectories[0].reward == 1.0


def test_a_scorer_by_its_name(tmp_path: Path) -> None:
    found = agentgym.evaluate("agentgym/WikiWorld-v0", "oracle", scorer="f1", episodes=3, run_dir=tmp_path)
    assert found.summary.mean_score == 1.0


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="oracle"):
        agentgym.evaluate(Pick, "oracel", run_dir=tmp_path / "x")
    with pytest.raises(ConfigError, match="takes weather, which nothing fills"):
        agentgym.evaluate(Pick, lambda weather: "look", run_dir=tmp_path / "x")
    with pytest.raises(UsageError, match="made a int"):
        agentgym.evaluate(lambda: 3, follows, run_dir=tmp_path / "x")  # type: ignore[arg-type,return-value]
    with pytest.raises(UsageError, match=r"^episodes must be at least 1, got 0$"):
        agentgym.evaluate(Pick, follows, episodes=0, run_dir=tmp_path / "x")
    with pytest.raises(UsageError, match="fewer than tasks=2000000"):
        agentgym.collect_rollouts(Pick, follows, tasks=2_000_000)
    with pytest.raises(UnknownNameError, match=r"household-tiny|tiny"):
        agentgym.train("tinny")
    with pytest.raises(AttributeError, match="no attribute 'evaluat'"):
        agentgym.evaluat  # noqa: B018
    assert not (tmp_path / "x").exists()


def test_arguments_of_a_wrong_kind(tmp_path: Path) -> None:
    env: Any = Pick()
    with pytest.raises(UsageError, match=r"^env is an instance of Pick; expected an id, .* an environment class"):
        agentgym.evaluate(env, follows, run_dir=tmp_path / "x")
    with pytest.raises(UsageError, match=r"^policy is an instance of int; expected a name"):
        agentgym.collect_rollouts(Pick, 5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^tasks must be at least 1, got 0$"):
        agentgym.collect_rollouts(Pick, follows, tasks=0)
    with pytest.raises(UsageError, match=r"^changes must be a dictionary .* not a list$"):
        agentgym.train("tiny", ["num_steps=1"])  # type: ignore[arg-type]


def test_a_policy_that_fails_is_named_with_its_line(tmp_path: Path) -> None:
    def divides() -> float:
        return 1 / 0

    line = divides.__code__.co_firstlineno + 1
    with pytest.raises(
        RunStoppedError, match=rf"ZeroDivisionError: division by zero \(\S*test_api\.py:{line}\)\. The policy"
    ):
        agentgym.evaluate(Pick, divides, episodes=2, run_dir=tmp_path / "x")


def test_errors_of_concurrent_episodes_are_raised_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def idles() -> None:
        return None

    with pytest.raises(UsageError, match="got None"):
        agentgym.evaluate(Pick, idles, episodes=2, run_dir=tmp_path / "x")
    with pytest.raises(UsageError, match="got None"):
        agentgym.collect_rollouts(Pick, idles, group_size=2)

    def fails(*args: object, **kwargs: object) -> None:
        raise ExceptionGroup("two", [KeyError("x"), RunStoppedError("the loss is not finite")])

    monkeypatch.setattr("agentgym.trainers.train.train", fails)
    with pytest.raises(RunStoppedError, match="the loss is not finite"):
        agentgym.train("tiny", run_dir=tmp_path / "run")


def test_changes_equal_overrides() -> None:
    before = counting_config()
    assert apply_changes(before, {"optimizer.lr": 0.5, "env.kwargs.x": "y"}) == apply_overrides(
        before, ["optimizer.lr=0.5", "env.kwargs.x=y"]
    )


@pytest.mark.slow
def test_training_and_going_on(tmp_path: Path) -> None:
    changes = {"env.id": "agentgym/Maze-v0", "num_steps": 1, "sft.num_demos": 16, "eval.num_episodes": 2}
    first = agentgym.train("tiny", {**changes, "groups_per_step": 2, "group.group_size": 2}, run_dir=tmp_path / "run")
    assert first.steps == 1 and (tmp_path / "run" / "report.html").is_file()
    second = agentgym.resume(tmp_path / "run", num_steps=2)
    assert second.steps == 2
    played = agentgym.evaluate("agentgym/Maze-v0", str(tmp_path / "run"), episodes=2, run_dir=tmp_path / "eval")
    assert played.summary.num_episodes == 2 and played.summary.mean_tokens > 0


def test_an_evaluation_is_no_run_to_resume(tmp_path: Path) -> None:
    folder = tmp_path / "eval"
    agentgym.evaluate("agentgym/Maze-v0", "oracle", kwargs={"size": 2}, episodes=1, run_dir=folder)
    with pytest.raises(UsageError, match=f"is an evaluation, not a training run: agentgym eval --resume {folder}"):
        agentgym.resume(folder)


def test_tasks_that_are_none_are_refused() -> None:
    tasks: Any = [1, 2]
    with pytest.raises(UsageError, match=r"tasks is a number of tasks or a list of Task, .*; got 1"):
        agentgym.collect_rollouts("agentgym/Maze-v0", "random", tasks=tasks, kwargs={"size": 2})


def test_folders_that_are_none_are_refused() -> None:
    given: Any = 1
    with pytest.raises(UsageError, match="an evaluation is 1, expected the path of a folder"):
        agentgym.compare(given, given)
    with pytest.raises(UsageError, match="run_dir is 1, expected the path of a folder"):
        agentgym.resume(given)
    with pytest.raises(UsageError, match="run_dir is 1, expected the path of a folder"):
        agentgym.evaluate("agentgym/Household-v0", "oracle", run_dir=given)
