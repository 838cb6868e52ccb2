"""Demonstrations from recorded runs and from a teacher: which episodes, and in whose token ids."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testkit.counting_runs import config
from testkit.fake_openai import FakeOpenAI, completion
from testkit.recorded_runs import group, lost

from agentgym.errors import ConfigError, UsageError
from agentgym.rollout.record import read_records, record_path, recorded_steps
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.sft import Keep, SftConfig
from agentgym.trainers.config.train import EvalConfig, TrainConfig
from agentgym.trainers.data.row import Row
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.phases.demonstrations import collect_rows, read_given
from agentgym.trainers.reporting.metrics import SilentLog
from agentgym.trainers.run.run import Run
from agentgym.trainers.sft.recorded import chosen, read_run
from agentgym.trainers.train import train
from agentgym.types import Status, ToolCall, Trajectory

PLAIN = ModelConfig(hidden_size=32, num_layers=1, head_dim=16, vocab_size=320, max_context_tokens=160)


class Said(SilentLog):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "first"
    train(
        config(num_steps=2, sft=SftConfig(num_demos=320, num_epochs=6, batch_size=8, noise=0.1, checkpoint_every=80)),
        run_dir,
    )
    return run_dir


def rollouts(run_dir: Path) -> list[Trajectory]:
    records = [one for step in recorded_steps(run_dir) for one in read_records(record_path(run_dir, step))]
    return [trajectory for record in records for trajectory in record.group.trajectories]


def collected(config: TrainConfig, run_dir: Path) -> tuple[list[Row], list[str], Run]:
    log, run = Said(), Run(config, run_dir)
    return asyncio.run(collect_rows(run, read_given(config.sft), log)), log.lines, run


def calls_of(trajectory: Trajectory) -> list[tuple[str, object]]:
    calls = [call for turn in trajectory.turns for call in turn.action.calls]
    return [(call.name, dict(call.arguments)) for call in calls if isinstance(call, ToolCall)]


# -------------------------------------------------------------------------------------------------- which episodes


@pytest.mark.parametrize("keep", ["all", "success", "best"])
def test_keep_chooses_among_valid_episodes(keep: Keep) -> None:
    rng = np.random.default_rng(3)
    groups = [group(ordinal, rng) for ordinal in range(3)]
    failed = [replace(lost(one.task), segments=one.trajectories[0].segments) for one in groups]
    members = [trajectory for one in groups for trajectory in one.trajectories]
    again = [replace(members[0], replayed_step=0), replace(members[4], replayed_step=1)]
    got = chosen([*failed, *again, *members], keep)
    assert all(trajectory.status is not Status.ENV_ERROR for trajectory in got)
    if keep == "best":
        best = [max(one.trajectories, key=lambda trajectory: trajectory.reward or 0.0) for one in groups]
        assert got == best
    else:
        assert got == [trajectory for trajectory in members if keep == "all" or trajectory.success]


def test_ids_of_the_same_tokenizer_are_used_as_they_are(recorded: Path, tmp_path: Path) -> None:
    model = replace(PLAIN, path=str(recorded / "model"))
    sft = SftConfig(runs=(str(recorded),), keep="all", batch_size=4)
    rows, lines, _ = collected(config(model=model, sft=sft), tmp_path / "run")
    episodes = [trajectory for trajectory in rollouts(recorded) if trajectory.status.is_evidence]
    assert [row.token_ids for row in rows] == [s.token_ids for trajectory in episodes for s in trajectory.segments]
    assert f"{len(episodes)} with their recorded token ids, 0 rendered again" in lines[0]
    assert "12 left out as tasks of the split 'test' (eval.split)" in lines[0]


def test_for_another_tokenizer_the_messages_are_rendered_again(recorded: Path, tmp_path: Path) -> None:
    sft = SftConfig(runs=(str(recorded),), keep="all", batch_size=1)
    made = config(model=replace(PLAIN, splits="words"), sft=sft)
    rows, lines, run = collected(made, tmp_path / "run")
    valid = [trajectory for trajectory in rollouts(recorded) if trajectory.status.is_evidence]
    episodes = [one for one in valid if all(isinstance(c, ToolCall) for turn in one.turns for c in turn.action.calls)]
    assert f"{len(valid) - len(episodes)} left out for malformed calls" in lines[0]
    assert len(episodes) > 1 and f"0 with their recorded token ids, {len(episodes)} rendered again" in lines[0]
    assert len(rows) == len(episodes)
    tools = run.envs[0].make_env().tools
    for row, episode in zip(rows, episodes, strict=True):
        assert row.token_ids != episode.segments[0].token_ids
        starts = np.flatnonzero(np.diff(row.over_tokens("is_sampled").astype(int), prepend=0) == 1)
        ends = np.flatnonzero(np.diff(row.over_tokens("is_sampled").astype(int), append=0) == -1) + 1
        read = [
            run.renderer.read(row.token_ids[a:b], tools) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        assert [(c.name, dict(c.arguments)) for m in read for c in m.calls if isinstance(c, ToolCall)] == calls_of(
            episode
        )


def test_an_evaluation_of_other_tasks_is_a_source(recorded: Path, tmp_path: Path) -> None:
    sft = SftConfig(runs=(str(recorded / "eval" / "after"),), keep="all", batch_size=1)
    rows, lines, _ = collected(config(sft=sft, eval=EvalConfig(split="train")), tmp_path / "run")
    assert len(rows) == 6
    assert "6 episodes, 0 failed" in lines[0]
    with pytest.raises(
        UsageError, match=r"no episode is left to learn from: 6 episodes.*6 left out as tasks of the split 'test'"
    ):
        collected(config(sft=sft), tmp_path / "other")
    log, run = Said(), Run(config(sft=sft), tmp_path / "silent")
    with pytest.raises(UsageError):
        asyncio.run(collect_rows(run, read_given(sft), log))
    assert log.lines == [], "the error holds the counts"


def test_folders_without_episodes_are_refused(recorded: Path, tmp_path: Path) -> None:
    for path, why in (("nowhere", "there is no folder nowhere"), (str(tmp_path), "holds no recorded episodes")):
        with pytest.raises(UsageError, match=why):
            read_run(path)
    sft = SftConfig(runs=(str(recorded),), keep="all")
    with pytest.raises(UsageError, match=r"episodes of Counting-v0, and the run trains on agentgym/KuhnPoker-v0"):
        collected(apply_overrides(config(sft=sft), ["env.id=agentgym/KuhnPoker-v0"]), tmp_path / "run")
    too_many = config(sft=replace(sft, batch_size=1000), model=replace(PLAIN, path=str(recorded / "model")))
    with pytest.raises(UsageError, match=r"24 rows, fewer than sft\.batch_size=1000"):
        collected(too_many, tmp_path / "run")


def test_a_resumed_run_needs_the_demonstrations_it_began_with(recorded: Path, tmp_path: Path) -> None:
    model = replace(PLAIN, path=str(recorded / "model"))
    made = config(model=model, sft=SftConfig(runs=(str(recorded),), keep="all", batch_size=4))
    collected(made, tmp_path / "run")
    collected(made, tmp_path / "run")
    with pytest.raises(UsageError, match=r"have changed since it began \(24 rows then, \d+ now\)"):
        collected(replace(made, sft=replace(made.sft, keep="best")), tmp_path / "run")


# ------------------------------------------------------------------------------------------------------ the teacher


def counting(body: dict[str, Any]) -> Any:
    """Adds 2 each turn, sometimes too much, with a thought and a word; tasks that end at 3 fail at the endpoint."""
    goal = int(body["messages"][0]["content"].split()[2].rstrip("."))
    if goal == 3:
        return 500
    reply = completion("Next.", ("add", json.dumps({"number": 9 if body["seed"] % 3 == 0 else 2})))
    reply["choices"][0]["message"]["reasoning_content"] = "One more."
    return reply


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    made = FakeOpenAI(counting)
    yield made
    made.close()


def taught(server: FakeOpenAI, **changes: Any) -> TrainConfig:
    teacher = f"openai:{server.url}?model=m&num_tries=1"
    return config(sft=SftConfig(teacher=teacher, num_demos=9, batch_size=2, **changes))


def test_a_teacher_plays_the_training_tasks(server: FakeOpenAI, tmp_path: Path) -> None:
    rows, lines, run = collected(taught(server, episodes_per_task=2), tmp_path / "run")
    (record,) = (tmp_path / "run" / "demos").glob("teacher.jsonl.gz")
    episodes = [trajectory for one in read_records(record) for trajectory in one.group.trajectories]
    failed = [trajectory for trajectory in episodes if not trajectory.status.is_evidence]
    won = [trajectory for trajectory in episodes if trajectory.success]
    assert (len(episodes), bool(failed), bool(won), len(won) + len(failed) < 18) == (18, True, True, True)
    assert f"18 episodes, {len(failed)} failed, {len(won)} succeeded, {len(won)} kept (sft.keep=success)" in lines[0]
    assert len(rows) == len(won)
    text = run.tokenizer.decode(list(rows[0].token_ids))
    assert "<think>" in text and "One more." in text and "add: 2" in text
    assert {body["max_tokens"] for body in server.requests} == {1024}

    num_asked = len(server.requests)
    again, _, _ = collected(taught(server, episodes_per_task=2), tmp_path / "run")
    assert [row.token_ids for row in again] == [row.token_ids for row in rows]
    assert len(server.requests) == num_asked, "a resumed run has the episodes in its folder"


def test_the_best_episode_of_each_task_is_kept(server: FakeOpenAI, tmp_path: Path) -> None:
    rows, lines, _ = collected(taught(server, episodes_per_task=2, keep="best"), tmp_path / "run")
    failed = int(lines[0].split(" episodes, ")[1].split(" failed")[0])
    assert len(rows) == (18 - failed) // 2


def test_a_teacher_that_nobody_can_reach_is_said_at_once(server: FakeOpenAI, tmp_path: Path) -> None:
    made = taught(server)
    server.close()
    with pytest.raises(UsageError, match=r"the endpoint http.* cannot be reached"):
        collected(made, tmp_path / "run")


# ------------------------------------------------------------------------------------ random actions of the oracle's


def noisy(noise: float, weight: float) -> TrainConfig:
    return config(sft=SftConfig(num_demos=40, noise=noise, noise_weight=weight, observation_weight=0.0))


def test_random_actions_are_shown_and_weigh_what_is_asked_for(tmp_path: Path) -> None:
    taught, shown, half = (collected(noisy(0.3, weight), tmp_path / str(weight))[0] for weight in (1.0, 0.0, 0.5))
    assert [row.token_ids for row in taught] == [row.token_ids for row in half]
    num_random = sum(
        int((row.over_tokens("is_sampled") & (row.over_tokens("loss_weight") == 0.5)).sum()) for row in half
    )
    num_sampled = sum(int(row.over_tokens("is_sampled").sum()) for row in half)
    assert 0.2 < num_random / num_sampled < 0.4
    assert all((row.columns["loss_weight"][row.columns["is_sampled"]] == 1).all() for row in taught)
    # a row of random actions alone has no token to learn from, and is left out
    wanted = [
        2 * some.over_tokens("loss_weight") - full.over_tokens("loss_weight")
        for full, some in zip(taught, half, strict=True)
    ]
    wanted = [weights for weights in wanted if weights.any()]
    assert len(wanted) < len(taught)
    assert all(np.allclose(row.over_tokens("loss_weight"), weights) for row, weights in zip(shown, wanted, strict=True))


def test_without_an_oracle_random_actions_are_what_is_taught(tmp_path: Path) -> None:
    rows, _, _ = collected(noisy(1.0, 0.0), tmp_path / "random")
    assert rows and all((row.columns["loss_weight"][row.columns["is_sampled"]] == 1).all() for row in rows)


def test_trl_takes_no_half_weight_of_random_actions() -> None:
    with pytest.raises(ConfigError, match=r"sft.noise_weight=0.5: set it to 0 or 1"):
        SftConfig(num_demos=4, noise_weight=0.5, observation_weight=0.0, trainer="trl")
