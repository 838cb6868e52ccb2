"""The manager and its workers: what each reads, reports, wrong actions, limits, and a run that trains both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentgym.check import check_env
from agentgym.env.env import Env
from agentgym.envs.roles.managed_team import ManagedTeamEnv
from agentgym.errors import UsageError
from agentgym.rollout.record import read_json_lines, read_records, record_path
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train
from agentgym.types import Message, Task, ToolCall

SMALL = {"num_objects": 3, "num_receptacles": 4}


class Worker:
    """A sub-agent that plays given actions, and keeps what it reads."""

    def __init__(self, *actions: Message) -> None:
        self.actions, self.read = list(actions), list[str]()

    async def __call__(self, agent: str, env: Env, task: Task) -> None:
        observation, _ = await env.areset(options={"task": task})
        is_over = False
        while not is_over:
            self.read.append(observation[-1].text)
            action = self.actions.pop(0) if self.actions else env.oracle()
            observation, _, terminated, truncated, _ = await env.astep(action)
            is_over = terminated or truncated


def call(name: str, **arguments: Any) -> Message:
    return Message("assistant", "", (ToolCall(name, arguments, "0"),))


def played(worker: Worker, orders: Sequence[str]) -> tuple[ManagedTeamEnv, list[Any]]:
    env = ManagedTeamEnv(env_kwargs=SMALL, worker_turns=3)
    env.reset(options={"task": 0})
    env.hand_delegate(worker)
    steps = [env.step(call("delegate", order=order)) for order in orders]
    env.close()
    return env, steps


def test_a_worker_reads_its_order_and_what_was_last_seen() -> None:
    """It does not read the task, and the manager reads the report alone."""
    worker = Worker(call("look"), call("report", text="Nothing is open."), call("report", text="So it is."))
    env, steps = played(worker, ["look round", "and again"])
    first, looked, second = worker.read
    assert first == "Order: look round\nDo it, then report."
    assert second == f"{looked}\nOrder: and again\nDo it, then report."
    assert "Your task is" not in "".join(worker.read)
    assert [step[0][0].text for step in steps] == [
        "The worker reports: Nothing is open.",
        "The worker reports: So it is.",
    ]
    assert env.memory == (("The worker reports: Nothing is open.", looked), ("The worker reports: So it is.", ""))


def test_a_worker_that_does_not_report_ends_with_its_turns() -> None:
    worker = Worker(call("look"), Message("assistant", "I would rather not"), call("look"))
    _, [(observation, reward, terminated, _, info)] = played(worker, ["look round"])
    assert observation[0].text == "The worker gave no report."
    assert (reward, terminated, info["is_valid"]) == (0.0, False, True), "a worker's wrong action is not the manager's"


def test_a_gold_worker_does_what_it_is_told() -> None:
    _, [step] = played(Worker(), ["go somewhere"])
    assert step[0][0].text == "The worker gave no report."


def test_the_kit_finds_nothing_wrong() -> None:
    report = check_env(lambda: ManagedTeamEnv(env_kwargs=SMALL), num_episodes=3)
    assert report.passed, report.failures


def test_the_workers_can_write_code() -> None:
    code = {"sandbox": "process", "level": 0}
    env = ManagedTeamEnv(env="agentgym/Code-v0", env_kwargs=code, worker_turns=8)
    env.reset(options={"task": 0})
    while not env.episode.is_over:
        _, _, _, _, info = env.step(env.oracle())
    env.close()
    assert info["success"]


def test_both_are_trained_on_their_own_turns(tmp_path: Path) -> None:
    small = ["num_steps=2", "groups_per_step=2", "group.group_size=4", "sft.num_demos=240", "eval.num_episodes=2"]
    small += ["model.num_layers=1", "zero_variance_filter=off"]
    world = ["env.id=agentgym/ManagedTeam-v0", 'env.kwargs={"env": "agentgym/GuessNumber-v0", "worker_turns": 3}']
    roles = ["roles.worker.trained=true", "credit.estimator=m_grpo", "sft.noise=0.3"]
    train(apply_overrides(load_recipe("tiny"), [*world, *small, *roles]), tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    episodes = [
        one
        for step in (0, 1)
        for record in read_records(record_path(tmp_path / "run", step))
        for one in record.group.trajectories
    ]
    assert {(s.agent, s.role) for one in episodes for s in one.segments} == {("", ""), ("worker", "worker")}
    assert sum(row["trained_tokens"] for row in rows) and sum(row["role/worker/trained_tokens"] for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": "agentgym/KuhnPoker-v0"}, "a world of one agent with tools.* agentgym/KuhnPoker-v0 is none"),
        ({"worker_turns": 1}, "worker_turns must be at least 2"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ManagedTeamEnv(**arguments)
