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
from agentgym.envs.gui.replay import record, side_by_side
from agentgym.errors import UsageError
from agentgym.evals.policies import named_policy
from agentgym.evals.suite_runner import Play, run_suite
from agentgym.evals.suites import load_suite

oracle = named_policy("oracle")

pytestmark = NEEDS_MINIWOB
MEASURED = Path(__file__).parents[2] / "benchmarks" / "gui" / "miniwob-solvers.json"
NUM_SEEDS = 2  # here; the measurement above is of twenty
NUM_WRONG = 2


def unsolved(env: MiniWoBEnv, task: str) -> str:
    """What the policy did where it did not earn all of the reward; empty where it did, or could not know better."""
    done = record(env, task, MiniWoBEnv.oracle, max_turns=60)
    assert env.is_success() == (done.rewards[-1] == 1.0)
    if env.is_success() or is_ambiguous(env, task):
        return ""
    return f"{task}: {env.goal}: {done.actions}"


def is_ambiguous(env: MiniWoBEnv, task: str) -> bool:
    """True where two mails have the sender that the goal names, one of which is to be forwarded."""
    env.reset(options={"task": task})
    sender = env.goal.partition(" by ")[2].partition(" ")[0]
    is_twice = sum(node.name == sender for node in env.page.nodes) > 1
    return env.task.data["task"] in AMBIGUOUS and "forward" in env.goal and is_twice


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
    assert [what for what in side_by_side(make_env, unsolved, tasks) if what] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_every_policy_solves_its_task(part: int) -> None:
    tasks = [f"{name}-{seed}" for name in tuple(SOLVERS)[part::4] for seed in range(NUM_SEEDS)]
    assert [what for what in side_by_side(make_env, unsolved, tasks) if what] == []


@pytest.mark.slow
def test_what_is_wrong_is_not_paid() -> None:
    """Of every task a few episodes; where its page ends upon a wrong answer at all, at least one of them ends so."""
    tasks = [f"{name}-{seed}" for name in SOLVERS for seed in range(NUM_WRONG)]
    played = dict(zip(tasks, side_by_side(make_env, play_wrong, tasks), strict=True))
    assert {task: raw for task, raw in played.items() if raw is not None and raw > 0} == {}
    has_ended = {name for name in SOLVERS for seed in range(NUM_WRONG) if played[f"{name}-{seed}"] is not None}
    assert has_ended == set(SOLVERS) - RIGHT_ALONE


@pytest.mark.slow
def test_the_suite_is_of_the_tasks_with_a_policy_which_solves_it(tmp_path: Path) -> None:
    suite = load_suite("miniwob-all")
    assert suite.parts[0].kwargs["task"] == sorted(SOLVERS)
    play = Play(policy="oracle", make_agent=oracle, out_dir=tmp_path, num_envs=4)
    result = asyncio.run(run_suite(suite, play))
    assert (result.outcome, result.reason) == ("done", "")
    assert result.summary is not None
    assert (result.summary.num_episodes, result.summary.success) == (len(SOLVERS), 1.0)
