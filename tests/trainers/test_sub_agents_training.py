"""Training on episodes that ask sub-agents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from testkit import TESTKIT

from agentgym.errors import ConfigError
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.record import read_json_lines, read_records, record_path
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EvalConfig, TrainConfig
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

ENV_FILE = TESTKIT / "asking_env.py"


def config(*overrides: str) -> TrainConfig:
    made: Any = replace(
        apply_overrides(load_recipe("tiny"), [f"env.id={ENV_FILE}:Manager-v0", "sampling.max_new_tokens=8"]),
        model=ModelConfig(hidden_size=32, num_layers=1, head_dim=16, vocab_size=320, max_context_tokens=160),
        sft=SftConfig(num_demos=320, num_epochs=2, batch_size=8, checkpoint_every=20),
        num_steps=2,
        groups_per_step=3,
        group=GroupConfig(group_size=6, num_envs=8),
        eval=EvalConfig(num_episodes=4),
        zero_variance_filter="off",
    )
    return apply_overrides(made, ["credit.estimator=m_grpo", *overrides])


def test_both_agents_are_trained_each_in_its_own_rows(tmp_path: Path) -> None:
    train(config(), tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert all(row["logprob_gap_max"] < 1e-4 and row["trained_tokens"] > 0 for row in rows)
    records = [record for step in range(2) for record in read_records(record_path(tmp_path / "run", step))]
    trajectories = [(t, credit) for r in records for t, credit in zip(r.group.trajectories, r.credit, strict=True)]
    asked = [(t, credit) for t, credit in trajectories if any(segment.agent for segment in t.segments)]
    assert len(asked) > 4
    for trajectory, credit in asked:
        at = 0
        for segment in trajectory.segments:
            of_segment = {turn.advantage for turn in credit[at : at + len(segment.turns)]}
            assert len(of_segment) == 1, "one advantage for the main agent, one for each call"
            at += len(segment.turns)
    assert any(turn.advantage for _, credit in asked for turn in credit)


@pytest.mark.parametrize(
    "credit", ["estimator=gigpo", "estimator=grpo", "estimator=supo", 'shapers=[{"kind": "information_gain"}]']
)
def test_other_credit_is_refused(credit: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Manager-v0 asks sub-agents \(clerk\).*m_grpo, turn_gae .*rule 15"):
        train(config(f"credit.{credit}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_flow_grpo_trains_the_planner_alone(tmp_path: Path) -> None:
    settings = config("credit.estimator=flow_grpo", "num_steps=1")
    train(settings, tmp_path / "run")
    (row,) = (row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl")
    records = list(read_records(record_path(tmp_path / "run", 0)))
    members = [(t, credit) for r in records for t, credit in zip(r.group.trajectories, r.credit, strict=True)]
    agents = [segment.agent for t, _ in members for segment in t.segments for _ in segment.turns]
    weights = [turn.loss_weight for _, credit in members for turn in credit]
    assert "clerk" in agents
    assert weights == [0.0 if agent else 1.0 for agent in agents]
    planners = [turn for t, _ in members for segment in t.segments if not segment.agent for turn in segment.turns]
    assert row["trained_tokens"] == sum(len(turn.completion.token_ids) for turn in planners)
