"""Runs by rollout strategies: what they play, that they can be resumed, and what is refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.checkpoints import drop_checkpoint, read_checkpoint
from testkit.counting_runs import config, token_ages, trained_ordinals, weights
from testkit.faulty_runs import break_environments

from agentgym.errors import ConfigError, RunStoppedError
from agentgym.rollout.record import read_json_lines, read_records, record_path, recorded_steps
from agentgym.trainers.config.overrides import apply_overrides, load_config
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.train import train
from agentgym.types import Status, TrajectoryGroup

VADE = 'strategy.tasks={"kind": "vade", "pool": 5}'
KNAPSACK = 'strategy.budget={"kind": "knapsack", "low": 2, "high": 9}'
SPO = 'strategy.tasks={"kind": "spo", "pool": 5}'
DOTS = 'strategy.tasks={"kind": "dots", "pool": 5}'
VAS = 'strategy.tasks={"kind": "vas"}'
XRPO = 'strategy.budget={"kind": "xrpo", "high": 9}'
EXTENDING = 'strategy.horizon={"kind": "extending", "start": 1, "more": 1, "most": 4}'
SPEAR = 'strategy.replay={"kind": "spear", "warmup_steps": 0, "max_age": 5}'
DARS = 'strategy.budget={"kind": "dars", "high": 10}'
SCALING = 'strategy.horizon={"kind": "scaling_inter", "rounds": [1, 2, 9], "steps": 2}'
FEW_TASKS = ("env.num_train_tasks=5",)


def run(run_dir: Path, *overrides: str, **changes: Any) -> TrainConfig:
    made = apply_overrides(config(**changes), [*FEW_TASKS, *overrides])
    train(made, run_dir)
    return made


def groups_of(run_dir: Path) -> list[list[TrajectoryGroup]]:
    """The groups of each step."""
    return [[record.group for record in read_records(record_path(run_dir, step))] for step in recorded_steps(run_dir)]


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    return [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]


def test_a_horizon_ends_episodes_as_failures_that_train(tmp_path: Path) -> None:
    run(tmp_path / "run", SCALING)
    of_steps = groups_of(tmp_path / "run")
    most = [max(len(member.turns) for group in step for member in group.trajectories) for step in of_steps]
    assert most[0] == 1 and max(most[1:3]) == 2 and max(most[3:]) > 2
    short = [member for member in (m for g in of_steps[0] for m in g.trajectories) if member.success is not True]
    assert short and {member.status for member in short} == {Status.TRUNCATED_TURNS}
    assert all(member.status.is_evidence and member.success is False for member in short)


def test_a_knapsack_moves_episodes_between_groups(tmp_path: Path) -> None:
    run(tmp_path / "run", KNAPSACK)
    sizes = [[len(group.trajectories) for group in step] for step in groups_of(tmp_path / "run")]
    assert sizes[0] == [4, 4, 4], "of tasks that were never played"
    assert {sum(step) for step in sizes} == {12}, "as many episodes as even groups have"
    assert any(len(set(step)) > 1 for step in sizes)
    assert all(math.isfinite(row["loss"]) for row in rows_of(tmp_path / "run") if row["loss"] is not None)


def test_groups_that_turned_out_hard_get_more_episodes(tmp_path: Path) -> None:
    run(tmp_path / "run", DARS)
    for group in (group for step in groups_of(tmp_path / "run") for group in step):
        first = [bool(member.success) for member in group.trajectories[:4]]
        rate = sum(first) / 4
        expected = {0.0: 10, 0.25: 5}.get(rate, 4)
        assert len(group.trajectories) == expected
    members = [member for step in groups_of(tmp_path / "run") for group in step for member in group.trajectories]
    assert len({member.seed for member in members}) == len(members), "no episode is a copy of another"


def test_vade_plays_the_tasks_of_its_pool_again(tmp_path: Path) -> None:
    run(tmp_path / "run", VADE, "env.num_train_tasks=100")
    played = Counter(group.task.id for step in groups_of(tmp_path / "run") for group in step)
    assert len(played) <= 5 and sum(played.values()) == 18
    assert rows_of(tmp_path / "run")[-1]["num_tasks_played"] == len(played)


@pytest.mark.parametrize(
    "overrides",
    [(VADE, KNAPSACK, SCALING), (VADE, DARS), (SPO, XRPO, EXTENDING), (DOTS, SPEAR), (VAS, XRPO, SPEAR)],
    ids=["knapsack", "dars", "spo, xrpo and extending", "dots and spear", "vas, xrpo and spear"],
)
def test_a_resumed_run_ends_in_the_same_weights(overrides: tuple[str, ...], tmp_path: Path) -> None:
    made = run(tmp_path / "run", *overrides, checkpoint_every=1)
    expected, held = weights(tmp_path / "run"), read_checkpoint(tmp_path / "run", 6)
    assert sum(map(len, held["plan"]["history"][0].values())) == 18, "every group is counted once"
    drop_checkpoint(tmp_path / "run", 6)
    (tmp_path / "run" / "model" / "model.safetensors").unlink()
    assert load_config(tmp_path / "run" / "config.json") == made
    train(made, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected
    again = read_checkpoint(tmp_path / "run", 6)
    assert again["plan"] == held["plan"]
    assert all(torch.equal(value, again["model"][name]) for name, value in held["model"].items())


@pytest.mark.parametrize("source", [SPO, DOTS], ids=["spo", "dots"])
def test_sources_play_the_tasks_of_their_pool(source: str, tmp_path: Path) -> None:
    run(tmp_path / "run", source, "env.num_train_tasks=100")
    played = Counter(group.task.id for step in groups_of(tmp_path / "run") for group in step)
    assert len(played) <= 5 and sum(played.values()) == 18


def test_vas_plays_tasks_again_that_vary(tmp_path: Path) -> None:
    run(tmp_path / "run", VAS, "env.num_train_tasks=100")
    of_steps = groups_of(tmp_path / "run")
    varied: set[str] = set()
    again = []
    for step in of_steps:
        again += [group.task.id for group in step if group.task.id in varied]
        varied |= {group.task.id for group in step if 0 < sum(bool(m.success) for m in group.valid) < len(group.valid)}
    assert again, "of a hundred tasks none would have come twice by itself"


def test_xrpo_moves_episodes_between_groups(tmp_path: Path) -> None:
    run(tmp_path / "run", XRPO)
    sizes = [[len(group.trajectories) for group in step] for step in groups_of(tmp_path / "run")]
    assert sizes[0] == [4, 4, 4], "of tasks that were never played"
    assert {sum(step) for step in sizes} == {12} and any(len(set(step)) > 1 for step in sizes)


def test_a_limit_of_turns_grows_where_it_cuts_progress_short(tmp_path: Path) -> None:
    run(tmp_path / "run", EXTENDING)
    limits = [row["turn_limit"] for row in rows_of(tmp_path / "run")]
    assert limits[0] == 1 and limits[-1] > 1 and max(limits) <= 4
    most = [
        max(len(member.turns) for group in step for member in group.trajectories)
        for step in groups_of(tmp_path / "run")
    ]
    assert most[0] == 1 and max(most[1:]) > 1


def test_spear_trains_successes_again_beside_new_ones(tmp_path: Path) -> None:
    run(tmp_path / "run", SPEAR)
    rows = rows_of(tmp_path / "run")
    again = [
        (step, group, member)
        for step, groups in enumerate(groups_of(tmp_path / "run"))
        for group in groups
        for member in group.trajectories
        if member.replayed_step is not None
    ]
    assert again and sum(row["num_replayed"] for row in rows) == len(again)
    assert all(member.success and 1 <= step - (member.replayed_step or 0) <= 5 for step, _, member in again)
    assert any(sum(bool(m.success) for m in group.trajectories) > 1 for _, group, _ in again)


def test_wide_groups_with_several_epochs_train(tmp_path: Path) -> None:
    run(tmp_path / "run", "group.group_size=16", "loss.num_epochs=2", "groups_per_step=1", num_steps=3)
    assert [[len(group.trajectories) for group in step] for step in groups_of(tmp_path / "run")] == [[16]] * 3
    assert any(row["updates_done"] == 2 for row in rows_of(tmp_path / "run"))


def test_async_mode_takes_every_group_once(tmp_path: Path) -> None:
    run(tmp_path / "run", VADE, KNAPSACK, "pipeline.mode=async")
    assert sorted(trained_ordinals(tmp_path / "run")) == list(range(18))
    assert token_ages(tmp_path / "run") <= {0, 1}


def test_failures_of_the_environment_are_no_evidence_for_strategies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_environments(monkeypatch, crash=0.2)
    run(
        tmp_path / "run", VADE, DARS, SCALING, "group.max_failure_rate=1", "group.max_retries=0",
    )  # fmt: skip
    of_steps = groups_of(tmp_path / "run")
    members = [member for step in of_steps for group in step for member in group.trajectories]
    failed = [member for member in members if not member.status.is_evidence]
    assert failed, "the faults struck"
    assert all(member.success is None for member in failed)
    (history,) = read_checkpoint(tmp_path / "run", 6)["plan"]["history"]
    assert sum(size for visits in history.values() for _, size, _ in visits) == len(members) - len(failed)
    assert max(len(member.turns) for group in of_steps[0] for member in group.trajectories) == 1


def test_an_environment_of_a_mixture_has_its_own_strategy() -> None:
    env = f'{{"id": "{config().env.id}", "name": "a", "strategy": {{"tasks": {{"kind": "vade"}}}}}}'
    other = f'{{"id": "{config().env.id}", "name": "b"}}'
    made = apply_overrides(config(), [f"envs=[{env}, {other}]"])
    assert [own.strategy.tasks.kind for own in made.by_env.values()] == ["vade", "order"]


def refused(match: str, *overrides: str) -> None:
    with pytest.raises(ConfigError, match=match):
        apply_overrides(config(), overrides)


def test_what_cannot_be_is_refused() -> None:
    refused(r"low=1 is less than group.min_valid=2", 'strategy.budget={"kind": "knapsack", "low": 1}')
    refused("over_provision", KNAPSACK, "pipeline.over_provision=1")
    refused("scaling_inter has no effect", 'strategy.horizon={"kind": "scaling_inter", "rounds": [4, 4]}')
    refused("did you mean 'knapsack'", 'strategy.budget={"kind": "knapsak"}')


def test_a_probe_leaves_out_tasks_that_teach_nothing(tmp_path: Path) -> None:
    made = run(tmp_path / "run", "strategy.probe=6", "env.num_train_tasks=12", KNAPSACK, checkpoint_every=1)
    counts = json.loads((tmp_path / "run" / "probe.json").read_text())
    mixed = {task for task, (size, num_successes) in counts.items() if 0 < num_successes < size}
    assert len(counts) == 12 and 0 < len(mixed) < 12
    played = {group.task.id for step in groups_of(tmp_path / "run") for group in step}
    assert played and played <= mixed
    first = [len(group.trajectories) for group in groups_of(tmp_path / "run")[0]]
    assert sum(first) == 12, "the budget knows the tasks from the first step on"
    held = read_checkpoint(tmp_path / "run", 6)
    (history,) = held["plan"]["history"]
    assert {visits[0][0] for visits in history.values()} == {-1} and len(history) == len(mixed)

    expected = weights(tmp_path / "run")
    drop_checkpoint(tmp_path / "run", 6)
    (tmp_path / "run" / "model" / "model.safetensors").unlink()
    train(made, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected


def test_a_probe_that_finds_nothing_to_learn_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunStoppedError, match=r"none of 4 tasks is solved in some of 2 episodes and not in others"):
        run(tmp_path / "run", "strategy.probe=2", "env.num_train_tasks=4", "model.path=", "sft.num_demos=8")
    refused("must be 0 or at least 2", "strategy.probe=1")
    with pytest.raises(ConfigError, match=r"set env.num_train_tasks to at most 10,000"):
        run(tmp_path / "many", "strategy.probe=2", "env.num_train_tasks=0")
