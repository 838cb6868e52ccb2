"""Chains of tasks with skills, the whole way: both tasks are credited and trained, and a stopped run goes on alike."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agentgym.rollout.record import read_json_lines, read_records, record_path, recorded_steps
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train


def small() -> TrainConfig:
    """The recipe over words of two or three letters, which a tiny model learns to type from few demonstrations."""
    return apply_overrides(
        load_recipe("skill-chain"),
        [
            *("env.kwargs.env=testkit.typing_world:Kept-v0", "env.kwargs.env_kwargs={}", "env.num_train_tasks=5"),
            *("model.num_layers=1", "model.hidden_size=64", "model.vocab_size=320", "model.max_context_tokens=256"),
            *("sft.num_demos=400", "sft.noise=0", "sft.batch_size=4", "sft.optimizer.lr=1e-2"),
            *("eval.split=train", "eval.num_episodes=1", "sft.checkpoint_every=200"),
            *("num_steps=2", "groups_per_step=2", "group.group_size=4", "checkpoint_every=1"),
        ],
    )


@pytest.mark.slow
def test_the_recipe_trains_both_tasks_and_a_stopped_run_ends_in_the_same_weights(tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(small(), whole)
    rows = [row for row in read_json_lines(whole / "metrics.jsonl") if row["phase"] == "rl"]
    assert len(rows) == 2 and all(row["trained_tokens"] > 0 for row in rows)
    assert all(any(row[f"player/{player}/success"] > 0 for row in rows) for player in (0, 1))
    credited, names = set(), set()
    for step in recorded_steps(whole):
        for record in read_records(record_path(whole, step)):
            for trajectory, credit in zip(record.group.trajectories, record.credit, strict=True):
                names |= {(trajectory.player, part.name) for turn in trajectory.turns for part in turn.reward_parts}
                credited |= {trajectory.player for turn in credit if turn.advantage}
    assert credited == {0, 1}
    assert {(0, "skill_made"), (1, "skill_used")} <= names
    assert not {(0, "skill_used"), (1, "skill_made")} & names
    shutil.copytree(whole, stopped)
    shutil.rmtree(sorted((stopped / "checkpoints").glob("rl-*"))[-1])
    shutil.rmtree(stopped / "model")
    train(small(), stopped, resume=True)
    name = "model/model.safetensors"
    assert (stopped / name).read_bytes() == (whole / name).read_bytes()
