"""Training on episodes that do not fit in one context window."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from testkit import TESTKIT
from testkit.counting_runs import weights_in

from agentgym.errors import ConfigError, CorruptDataError
from agentgym.rollout.context import CONTEXT_FILE, ContextConfig
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.record import GroupRecord, read_json_lines, read_records, record_path
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EvalConfig, TrainConfig
from agentgym.trainers.data.samples import FilteredGroup, build_samples
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.models.optimizer import OptimizerConfig
from agentgym.trainers.placement.policy import load_context
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train
from agentgym.types import Segment

ENV_FILE = TESTKIT / "long_env.py"
WINDOW = 110
SUMMARISE = ContextConfig(policy="summarise", window_tokens=WINDOW, summary_tokens=12, max_summaries=40)


def config(**changes: Any) -> TrainConfig:
    made = replace(
        apply_overrides(load_recipe("tiny"), [f"env.id={ENV_FILE}:Stairs-v0", "sampling.max_new_tokens=8"]),
        model=ModelConfig(hidden_size=32, num_layers=1, head_dim=16, vocab_size=400, max_context_tokens=1024),
        sft=SftConfig(num_demos=0),
        optimizer=OptimizerConfig(),
        num_steps=2,
        groups_per_step=2,
        group=GroupConfig(group_size=4, num_envs=8),
        eval=EvalConfig(num_episodes=4),
    )
    return replace(made, **changes)


def records(run_dir: Path) -> list[GroupRecord]:
    return [record for step in range(2) for record in read_records(record_path(run_dir, step))]


def rl_rows(run_dir: Path) -> list[dict[str, Any]]:
    rows = [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]
    return [
        {name: row[name] for name in row if not name.startswith(("time/", "tokens_per_s", "engine/"))} for row in rows
    ]


def segments(run_dir: Path) -> list[Segment]:
    return [s for r in records(run_dir) for t in r.group.trajectories for s in t.segments]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the whole history in one window, its model warm-started."""
    run_dir = tmp_path_factory.mktemp("runs") / "whole"
    train(config(sft=SftConfig(num_demos=16, num_epochs=1, batch_size=8)), run_dir)
    return run_dir


def test_an_episode_three_times_longer_than_the_window_is_played_and_trained(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(config(context=SUMMARISE, sft=SftConfig(num_demos=16, num_epochs=1, batch_size=8)), run_dir)
    trajectories = [t for r in records(run_dir) for t in r.group.trajectories]
    said = [sum(len(s.token_ids) for s in t.segments) for t in trajectories]
    openings = [sum(len(s.turns[0].prompt_ids) for s in t.segments[1:]) for t in trajectories]
    assert min(a - b for a, b in zip(said, openings, strict=True)) > 3 * WINDOW
    assert max(len(s.token_ids) for s in segments(run_dir)) <= WINDOW
    assert min(len(t.segments) for t in trajectories) >= 4

    rows = rl_rows(run_dir)
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 for row in rows)
    assert all(row["logprob_gap_max"] < 1e-4 for row in rows), "the trainer reads the tokens that were sampled"
    for step, row in enumerate(rows):
        kept = [r for r in read_records(record_path(run_dir, step)) if r.dropped is None]
        samples = build_samples([FilteredGroup.of_record(record) for record in kept])
        assert len(samples) == sum(len(t.segments) for r in kept for t in r.group.trajectories)
        assert row["trained_tokens"] == sum(len(sample.in_batch) for sample in samples)
        assert row["num_summaries"] == row["num_segments"] - 1 > 2
    assert load_context(run_dir / "model") == SUMMARISE


@pytest.mark.parametrize("estimator", ["grpo", "supo"])
def test_summaries_have_the_advantage_of_their_trajectory(estimator: str, tmp_path: Path) -> None:
    train(apply_overrides(config(context=SUMMARISE, num_steps=2), [f"credit.estimator={estimator}"]), tmp_path / "run")
    for record in records(tmp_path / "run"):
        for credit in record.credit:
            assert len({turn.advantage for turn in credit}) == 1
    assert any(turn.advantage for r in records(tmp_path / "run") for row in r.credit for turn in row)


@pytest.mark.parametrize("credit", ["gigpo", "hgpo"])
def test_every_turn_of_a_windowed_episode_is_a_row_with_its_own_credit(credit: str, tmp_path: Path) -> None:
    context = ContextConfig(policy="window", num_turns=2)
    train(apply_overrides(config(context=context), [f"credit.estimator={credit}"]), tmp_path / "run")
    assert all(len(segment.turns) == 1 for segment in segments(tmp_path / "run"))
    assert all(row["logprob_gap_max"] < 1e-4 for row in rl_rows(tmp_path / "run"))
    assert all(row["anchor_share"] > 0.2 for row in rl_rows(tmp_path / "run"))


def test_where_everything_fits_the_run_is_the_same_to_the_last_bit(whole: Path, tmp_path: Path) -> None:
    """Losses, gradients and weights: a run that may summarise and never has to is a run that may not."""
    warm = [f"model.path={whole / 'model'}"]
    roomy = replace(SUMMARISE, window_tokens=0)
    train(apply_overrides(config(), warm), tmp_path / "full")
    train(apply_overrides(config(context=roomy), warm), tmp_path / "roomy")
    assert rl_rows(tmp_path / "full") == rl_rows(tmp_path / "roomy")
    assert all(row["grad_norm"] > 0 for row in rl_rows(tmp_path / "full"))
    weights = [weights_in(tmp_path / name / "model") for name in ("full", "roomy")]
    assert weights[0] == weights[1]
    assert weights[0] != weights_in(whole / "model")
    assert [s.token_ids for s in segments(tmp_path / "full")] == [s.token_ids for s in segments(tmp_path / "roomy")]


def test_a_model_of_whole_histories_says_nothing_about_its_context(whole: Path) -> None:
    assert not (whole / "model" / CONTEXT_FILE).exists()
    assert load_context(whole / "model") == ContextConfig()


def test_a_context_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / CONTEXT_FILE).write_text('{"policy": "last"}')
    with pytest.raises(CorruptDataError, match=rf"{CONTEXT_FILE} cannot be read"):
        load_context(tmp_path)


def test_what_cannot_be_is_refused_when_the_configuration_is_read() -> None:
    with pytest.raises(ConfigError, match="leave nothing of a window of 20"):
        apply_overrides(config(), ["context.policy=summarise", "context.window_tokens=20"])
