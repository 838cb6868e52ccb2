"""Runs with two trained models that are killed, and games between models: a negotiation, and a league."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from testkit import TESTKIT
from testkit.killed_runs import resume, start
from testkit.run_records import weights

from agentgym.rollout.record import read_json_lines, read_records, record_path, recorded_steps
from agentgym.trainers.config.overrides import apply_overrides, save_config
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

KILL_WITHIN_S = 300.0
NUM_STEPS = 4
TWO = (
    f"env.id={TESTKIT}/asking_env.py:Manager-v0",
    'model={"hidden_size": 32, "num_layers": 1, "head_dim": 16, "vocab_size": 320, "max_context_tokens": 160}',
    *("sft.num_demos=320", "sft.num_epochs=2", "sft.batch_size=8", f"num_steps={NUM_STEPS}", "groups_per_step=3"),
    *("group.group_size=6", "group.num_envs=8", "eval.num_episodes=2", "sampling.max_new_tokens=8"),
    *("zero_variance_filter=off", "checkpoint_every=1", "credit.estimator=m_grpo", "engine.batch_invariant=true"),
    *("roles.clerk.trained=true", "roles.clerk.optimizer.lr=1e-3"),
)


def two_roles(*more: str) -> TrainConfig:
    return apply_overrides(load_recipe("tiny"), [*TWO, *more])


def rl_rows(run_dir: Path) -> list[dict[str, float]]:
    path = run_dir / "metrics.jsonl"
    return [row for row in read_json_lines(path) if row["phase"] == "rl"] if path.is_file() else []


def killed(config: TrainConfig, run_dir: Path, warm_python: str) -> None:
    """Begin a run in a process of its own, and kill it within its third step."""
    run_dir.mkdir()
    save_config(config, run_dir / "config.json")
    process = start(warm_python, run_dir)
    deadline = time.monotonic() + KILL_WITHIN_S
    while len(rl_rows(run_dir)) < 2:
        assert process.is_running() and time.monotonic() < deadline, "the run ended before it could be killed"
        time.sleep(0.005)
    process.kill()
    assert not (run_dir / "model").exists(), "else nothing was to be resumed"


@pytest.mark.slow
def test_kill_9_with_two_trained_roles_ends_in_the_same_weights(tmp_path: Path, warm_python: str) -> None:
    train(two_roles(), tmp_path / "whole")
    killed(two_roles(), tmp_path / "killed", warm_python)
    resume(tmp_path / "killed")
    for role in ("", "roles/clerk"):
        assert weights(tmp_path / "killed" / role) == weights(tmp_path / "whole" / role), role
    assert [row["step"] for row in rl_rows(tmp_path / "killed")] == list(range(1, NUM_STEPS + 1))


@pytest.mark.slow
def test_kill_9_in_async_mode_with_two_trained_roles_repeats_no_task(tmp_path: Path, warm_python: str) -> None:
    run_dir = tmp_path / "killed"
    killed(two_roles("pipeline.mode=async", "pipeline.max_staleness=2"), run_dir, warm_python)
    resume(run_dir)
    rows = rl_rows(run_dir)
    assert [row["step"] for row in rows] == list(range(1, NUM_STEPS + 1))
    assert all(row["role/clerk/trained_tokens"] > 0 < row["trained_tokens"] for row in rows)
    records = [record for step in recorded_steps(run_dir) for record in read_records(record_path(run_dir, step))]
    assert sorted(record.group.ordinal for record in records) == list(range(3 * NUM_STEPS))


def test_a_negotiation_between_two_models_with_critics_of_their_own(tmp_path: Path) -> None:
    """MARFT: each seat's model learns from its own turns, by values of its own critic."""
    settings = ("env.id=agentgym/Negotiation-v0", 'env.kwargs={"opponent": "self", "num_turns": 4}', "num_steps=1")
    small = ("model.max_context_tokens=512", "model.vocab_size=512", "sft.num_demos=400", "groups_per_step=8")
    marft = ("credit.estimator=turn_gae", "critic.by_role=true", "critic.lr=1e-3", "roles.player_2.trained=true")
    more = (
        "sampling.max_new_tokens=16",
        "eval.num_episodes=1",
        "zero_variance_filter=off",
        "eval.kwargs.opponent=naive",
    )
    train(apply_overrides(load_recipe("kuhn"), [*settings, *small, *marft, *more]), tmp_path / "run")
    (row,) = rl_rows(tmp_path / "run")
    for name in ("trained_tokens", "critic_loss"):
        assert row[name] > 0 < row[f"role/player_2/{name}"], name
    played = [one for record in read_records(record_path(tmp_path / "run", 0)) for one in record.group.valid]
    assert {(one.player, segment.role) for one in played for segment in one.segments} == {(0, ""), (1, "player_2")}


def test_a_league_in_tic_tac_toe(tmp_path: Path) -> None:
    small = (
        "sft.num_demos=400",
        "groups_per_step=4",
        "group.max_failure_rate=1",
        "num_steps=3",
        "eval.num_episodes=1",
        "group.num_envs=4",
    )
    league = ("roles.opponent.policy=league:1", "zero_variance_filter=off")
    train(apply_overrides(load_recipe("tictactoe"), [*small, *league]), tmp_path / "run")
    rows = rl_rows(tmp_path / "run")
    assert [row["role/opponent/version"] <= step for step, row in enumerate(rows)] == [True] * 3
    assert len(list((tmp_path / "run" / "past" / "opponent").glob("step-*.safetensors"))) >= 3
