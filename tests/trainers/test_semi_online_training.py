"""Training along an expert's traces: several segments per episode, UI-S1's credit, and the record of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from testkit import TESTKIT

from agentgym.credit.compose import assign_credit
from agentgym.envs.semi_online.traces import record_traces
from agentgym.registry import make
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.record import GroupRecord, read_json_lines, read_records, record_path
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EvalConfig, TrainConfig
from agentgym.trainers.data.samples import FilteredGroup, build_samples
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train
from agentgym.types import Trajectory

NUM_STEPS = 2
WORLD = f"{TESTKIT / 'counting_env.py'}:Counting-v0"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "counting.jsonl"
    world = make(WORLD)
    record_traces(world, [task for split in ("train", "valid", "test") for task in world.tasks(split)[:8]], path)
    return path


@pytest.fixture(scope="module")
def run_dir(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose model is right now and then."""
    made = tmp_path_factory.mktemp("runs") / "full"
    train(config(traces, "sft.num_demos=600"), made)
    return made


def config(traces: Path, *overrides: str) -> TrainConfig:
    kwargs = {"env": WORLD, "traces": str(traces)}
    made = replace(
        load_recipe("tiny"),
        model=ModelConfig(hidden_size=32, num_layers=1, head_dim=16, vocab_size=400, max_context_tokens=512),
        num_steps=NUM_STEPS,
        groups_per_step=2,
        group=GroupConfig(group_size=4, num_envs=8),
        eval=EvalConfig(num_episodes=4),
        sft=SftConfig(num_epochs=2, batch_size=8),
    )
    changes = ["env.id=agentgym/SemiOnline-v0", f"env.kwargs={json.dumps(kwargs)}", "sampling.max_new_tokens=10"]
    return apply_overrides(made, [*changes, "credit.estimator=ui_s1", *overrides])


def records(run_dir: Path) -> list[GroupRecord]:
    return [record for step in range(NUM_STEPS) for record in read_records(record_path(run_dir, step))]


def check_run(run_dir: Path) -> list[Trajectory]:
    """What any run must keep to; its episodes."""
    rows = [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]
    assert len(rows) == NUM_STEPS
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 for row in rows)
    assert all(row["logprob_gap_max"] < 1e-4 for row in rows), "the trainer reads the tokens that were sampled"
    for step, row in enumerate(rows):
        kept = [r for r in read_records(record_path(run_dir, step)) if r.dropped is None]
        samples = build_samples([FilteredGroup.of_record(record) for record in kept])
        assert row["trained_tokens"] == sum(len(sample.in_batch) for sample in samples)
    trajectories = [t for record in records(run_dir) for t in record.group.trajectories]
    turns = [turn for t in trajectories for turn in t.turns]
    assert sum(turn.played is not None for turn in turns) == round(sum(row["num_patched"] * 8 for row in rows))
    assert 0 < sum(turn.played is None for turn in turns) < len(turns), "the model is right now and then"
    return trajectories


def test_patched_episodes_are_trained_segment_by_segment(run_dir: Path) -> None:
    for trajectory in check_run(run_dir):
        begins = [segment.turns[0].index for segment in trajectory.segments]
        assert begins == [0, *(turn.index + 1 for turn in trajectory.turns[:-1] if turn.played is not None)]


def test_the_last_turns_as_text_are_those_that_were_played(run_dir: Path, traces: Path, tmp_path: Path) -> None:
    warm = f"model.path={run_dir / 'model'}"
    train(config(traces, "context.policy=window", warm), tmp_path / "window")
    assert all(len(segment.turns) == 1 for t in check_run(tmp_path / "window") for segment in t.segments)


def test_the_recorded_credit_is_made_again_from_the_record(run_dir: Path, traces: Path) -> None:
    for record in records(run_dir):
        (credit,) = assign_credit([record.group], config(traces).credit)
        again, was = ([[turn.advantage for turn in row] for row in rows] for rows in (credit, record.credit))
        assert again == was
        patched = [turn.played is not None for t in record.group.trajectories for turn in t.turns]
        to_go = [turn.return_to_go for row in credit for turn in row]
        rewards = [turn.reward for t in record.group.trajectories for turn in t.turns]
        assert all(
            g == pytest.approx(r) for g, r, is_patched in zip(to_go, rewards, patched, strict=True) if is_patched
        )
