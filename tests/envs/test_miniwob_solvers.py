"""The scripted policies solve their tasks, and what is wrong is not paid."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from testkit.miniwob_episodes import NEEDS_MINIWOB, make_env
from testkit.miniwob_wrong import RIGHT_ALONE, play_wrong

from agentgym.envs.gui.miniwob.env import MiniWoBEnv
from agentgym.envs.gui.miniwob.solvers import AMBIGUOUS, SOLVERS
from agentgym.envs.gui.replay import Recording, record, side_by_side
from agentgym.errors import UsageError
from agentgym.evals.config import EvalConfig
from agentgym.evals.play import Play
from agentgym.evals.policies import named_policy
from agentgym.evals.suite_runner import run_suite
from agentgym.evals.suites import load_suite, open_suite
from agentgym.types import Task

oracle = named_policy("oracle")

pytestmark = NEEDS_MINIWOB
MEASURED = Path(__file__).parents[2] / "benchmarks" / "gui" / "miniwob-solvers.json"
NUM_WRONG = 2
"""Most wrong episodes of a task, until one ends."""


def unsolved(env: MiniWoBEnv, task: Task | str) -> tuple[str, Recording]:
    """The policy's episode, and its actions as text if it did not earn all of the reward; else an empty text."""
    done = record(env, task, MiniWoBEnv.oracle, max_turns=60)
    assert env.is_success() == (done.rewards[-1] == 1.0)
    return "" if env.is_success() else f"{done.task.id}: {env.goal}: {done.actions}", done


def right_and_wrong(env: MiniWoBEnv, task: Task) -> tuple[str, float | None]:
    """What the policy leaves unsolved of a task, and the raw reward of a wrong episode; None if none has ended."""
    what, done = unsolved(env, task)
    raw = play_wrong(env, done)
    for number in range(1, NUM_WRONG):
        if raw is None:
            raw = play_wrong(env, unsolved(env, f"{task.data['task']}-{number}")[1])
    return what, raw


def test_the_table_tells_which_policies_are_proven() -> None:
    """At least forty, on twenty seeds each; what is committed is of the present policies."""
    results = json.loads(MEASURED.read_text(encoding="utf-8"))["results"]
    assert list(results["tasks"]) == list(SOLVERS)
    assert results["num_seeds"] == 20
    proven = [name for name, task in results["tasks"].items() if task["num_solved"] == 20]
    assert set(proven) >= set(SOLVERS) - AMBIGUOUS
    assert len(proven) == results["num_proven"] >= 40


def test_a_task_without_a_policy_says_so() -> None:
    env = make_env()
    env.reset(options={"task": "draw-circle-0"})
    with pytest.raises(UsageError, match="no oracle for 'draw-circle'; it has one for click-test"):
        env.oracle()
    env.close()


def test_a_few_tasks_are_solved() -> None:
    names = ("click-button", "enter-text", "click-tab-2", "count-shape", "choose-date-easy")
    tasks = [f"{name}-{seed}" for name in names for seed in range(100, 102)]
    assert [what for what, _ in side_by_side(make_env, unsolved, tasks) if what] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_every_policy_solves_the_suites_task_and_what_is_wrong_is_not_paid(part: int) -> None:
    """If a page ends upon a wrong answer at all, one of a task's wrong episodes ends so."""
    tasks = open_suite(load_suite("miniwob-all")).parts[0].tasks[part::4]
    played = side_by_side(make_env, right_and_wrong, tasks)
    assert [what for what, _ in played if what] == []
    wrong = {str(task.data["task"]): raw for task, (_, raw) in zip(tasks, played, strict=True)}
    assert {name: raw for name, raw in wrong.items() if raw is not None and raw > 0} == {}
    assert {name for name, raw in wrong.items() if raw is not None} == set(wrong) - RIGHT_ALONE


@pytest.mark.slow
def test_the_suite_is_of_the_tasks_with_a_policy_which_solves_it(tmp_path: Path) -> None:
    """Its first tasks as a suite; the test above plays all of them."""
    suite = load_suite("miniwob-all")
    assert suite.parts[0].kwargs["task"] == sorted(SOLVERS)
    assert [task.data["task"] for task in open_suite(suite).parts[0].tasks] == sorted(SOLVERS)
    play = Play(config=EvalConfig(policy="oracle", num_envs=4), make_agent=oracle, out_dir=tmp_path)
    result = asyncio.run(run_suite(suite.shortened(12), play))
    assert (result.outcome, result.reason) == ("done", "")
    assert result.summary is not None
    assert (result.summary.num_episodes, result.summary.success) == (12, 1.0)
