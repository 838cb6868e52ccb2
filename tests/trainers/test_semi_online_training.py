"""Training along an expert's traces: several segments per episode, UI-S1's credit, and the record of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym.credit.catalogue import ESTIMATORS
from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.envs.semi_online.traces import record_traces
from agentgym.registry import make
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.record import GroupRecord, read_json_lines, read_records, record_path
from agentgym.trainers.config import EvalConfig, ModelConfig, SftConfig, TrainConfig
from agentgym.trainers.loop import train
from agentgym.trainers.overrides import apply_overrides
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.samples import GroupVerdict, build_samples

NUM_STEPS = 2


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "maze.jsonl"
    maze = make("agentgym/Maze-v0")
    record_traces(maze, [task for split in ("train", "valid", "test") for task in maze.tasks(split)[:8]], path)
    return path


def config(traces: Path, *overrides: str) -> TrainConfig:
    kwargs = {"env": "agentgym/Maze-v0", "traces": str(traces)}
    made = replace(
        load_recipe("tiny"),
        model=ModelConfig(hidden_size=32, num_layers=1, head_dim=16, vocab_size=400, max_context_tokens=2048),
        num_steps=NUM_STEPS,
        groups_per_step=2,
        group=GroupConfig(group_size=4, num_envs=8),
        eval=EvalConfig(num_episodes=4),
        sft=SftConfig(num_demos=32, num_epochs=2, batch_size=8),
    )
    changes = ["env.id=agentgym/SemiOnline-v0", f"env.kwargs={json.dumps(kwargs)}", "sampling.max_new_tokens=10"]
    return apply_overrides(made, [*changes, "credit.estimator=ui_s1", *overrides])


def records(run_dir: Path) -> list[GroupRecord]:
    return [record for step in range(NUM_STEPS) for record in read_records(record_path(run_dir, step))]


@pytest.mark.parametrize("context", ["full", "window"])
def test_patched_episodes_are_trained_segment_by_segment(context: str, traces: Path, tmp_path: Path) -> None:
    train(config(traces, f"context.policy={context}"), tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert len(rows) == NUM_STEPS
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 for row in rows)
    assert all(row["logprob_gap_max"] < 1e-4 for row in rows), "the trainer reads the tokens that were sampled"
    trajectories = [t for record in records(tmp_path / "run") for t in record.group.trajectories]
    patched = [turn for t in trajectories for turn in t.turns if turn.played is not None]
    matched = [turn for t in trajectories for turn in t.turns if turn.reward == pytest.approx(1.0)]
    assert patched and matched, "a model of a few demonstrations is right now and then"
    assert all(turn.played != turn.action for turn in patched)
    for trajectory in trajectories:
        begins = [segment.turns[0].index for segment in trajectory.segments]
        after = [turn.index + 1 for turn in trajectory.turns[:-1] if turn.played is not None]
        assert begins == ([0, *after] if context == "full" else [turn.index for turn in trajectory.turns])
    for step, row in enumerate(rows):
        kept = [r for r in read_records(record_path(tmp_path / "run", step)) if r.dropped is None]
        samples = build_samples([GroupVerdict(r.group, r.credit, r.dropped) for r in kept])
        assert row["trained_tokens"] == sum(sum(sample.loss_mask) for sample in samples)


def test_the_recorded_credit_is_made_again_from_the_record(traces: Path, tmp_path: Path) -> None:
    made = config(traces)
    train(made, tmp_path / "run")
    for record in records(tmp_path / "run"):
        (credit,), _ = credit_groups([record.group], made.credit)
        assert credit == record.credit
        (other,), _ = credit_groups([record.group], CreditConfig(estimator="gigpo"))
        assert len(other) == len(credit)
    assert ESTIMATORS["ui_s1"].columns(None) == ("is_patched",)
