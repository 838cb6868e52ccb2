"""Columns and losses that run a model read each role's tokens by its own model."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from testkit import TESTKIT
from testkit.made_groups import a_task, group, trajectory, turn, two_groups

from agentgym.credit.compose import CreditConfig
from agentgym.credit.modulators.entropy import AepoOptions, EmpgOptions
from agentgym.errors import ConfigError
from agentgym.rollout.record import read_json_lines, read_records, record_path
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import EnvConfig, TrainConfig
from agentgym.trainers.critics.columns import ColumnMaker
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train
from agentgym.types import Segment, TrajectoryGroup

NO_RENDERER: Any = None
"""Entropies and drift are read off tokens."""
SMALL = (
    f"env.id={TESTKIT}/asking_env.py:Manager-v0",
    'model={"hidden_size": 32, "num_layers": 1, "head_dim": 16, "vocab_size": 320, "max_context_tokens": 160}',
    *("sft.num_demos=320", "sft.num_epochs=2", "sft.batch_size=8", "num_steps=1", "groups_per_step=3"),
    *("group.group_size=6", "group.num_envs=8", "eval.num_episodes=2", "sampling.max_new_tokens=8"),
    *("zero_variance_filter=off", "credit.estimator=m_grpo", "roles.clerk.trained=true"),
)


def config_of(credit: CreditConfig) -> TrainConfig:
    return TrainConfig(recipe="x", env=EnvConfig(id="x"), credit=credit)


def another(model: Any) -> Any:
    """Return a copy of a model with weights that say other things."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.2)
    return other


def with_roles() -> list[TrajectoryGroup]:
    """Return groups in which a clerk sampled every second window."""
    count = 0

    def named(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        nonlocal count
        made = tuple(replace(one, role="clerk" if (count + at) % 2 else "") for at, one in enumerate(segments))
        count += len(segments)
        return made

    return [
        replace(made, trajectories=tuple(replace(one, segments=named(one.segments)) for one in made.trajectories))
        for made in two_groups()
    ]


def test_entropies_are_of_the_model_that_sampled(small_model: Any) -> None:
    config = config_of(CreditConfig(modulators=(EmpgOptions(), AepoOptions())))
    clerk = another(small_model)
    groups = with_roles()
    roles = [
        s.role
        for made in groups
        for one in made.valid
        for s in one.segments
        for t in s.turns
        for _ in range(len(t.completion.token_ids))
    ]
    assert {*roles} == {"", "clerk"}
    made = ColumnMaker(config, small_model, NO_RENDERER, {"clerk": clerk}).make(groups).columns
    of_one = {
        role: ColumnMaker(config, model, NO_RENDERER).make(two_groups()).columns["token_entropy"]
        for role, model in (("", small_model), ("clerk", clerk))
    }
    assert np.abs(of_one[""] - of_one["clerk"]).max() > 1e-3, "else it would not matter who reads"
    expected = [of_one[role][at] for at, role in enumerate(roles)]
    np.testing.assert_allclose(made["token_entropy"], expected, atol=1e-6)


def test_the_drift_of_a_clerk_is_that_of_its_model(small_model: Any) -> None:
    def spoken() -> list[TrajectoryGroup]:
        said = trajectory([turn((3, 4), (5, 6, 7))], task=a_task("t"))
        return [group(replace(said, segments=tuple(replace(s, role="clerk") for s in said.segments)), task=a_task("t"))]

    clerk = another(small_model)
    maker = ColumnMaker(config_of(CreditConfig(estimator="spo")), small_model, NO_RENDERER, {"clerk": clerk})
    maker.make(spoken())
    with torch.no_grad():
        small_model.lm_head.weight.mul_(1.5)  # the policy changes, the clerk does not
    assert maker.make(spoken()).columns["drift"].tolist() == [0.0]
    again = ColumnMaker(config_of(CreditConfig(estimator="spo")), small_model, NO_RENDERER, {"clerk": clerk})
    again.load_state_dict(maker.state_dict())
    assert again.make(spoken()).columns["drift"][0] == pytest.approx(0.0, abs=1e-6)
    with torch.no_grad():
        clerk.lm_head.weight.mul_(1.5)
    assert maker.make(spoken()).columns["drift"][0] > 1e-3


def test_a_role_is_distilled_from_the_teacher_of_its_loss(tmp_path: Path) -> None:
    """A role takes over the run's teacher, or names another; before, its loss would have had none."""
    warm = tmp_path / "warm"
    train(apply_overrides(load_recipe("tiny"), [*SMALL, "num_steps=0"]), warm)
    model = warm / "model"
    given = [*SMALL, f"model.path={model}", "sft.num_demos=0"]
    distill = f'[{{"kind": "distill", "teacher": "{model}"}}]'
    train(apply_overrides(load_recipe("tiny"), [*given, f"loss.regularisers={distill}"]), tmp_path / "run")
    own = (f"roles.clerk.loss.regularisers={distill}",)
    train(apply_overrides(load_recipe("tiny"), [*given, *own]), tmp_path / "own")
    (row,) = (row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl")
    (alone,) = (row for row in read_json_lines(tmp_path / "own" / "metrics.jsonl") if row["phase"] == "rl")
    assert "teacher_kl" in row and "teacher_kl" not in alone
    for of_role in (row["role/clerk/teacher_kl"], alone["role/clerk/teacher_kl"]):
        assert of_role == pytest.approx(0.0, abs=1e-4), "the teacher has the same weights"


def test_entropies_of_a_run_are_those_of_its_roles(tmp_path: Path) -> None:
    modulated = ('credit.modulators=[{"kind": "empg"}]', "roles.clerk.optimizer.lr=1e-2", "num_steps=2")
    train(apply_overrides(load_recipe("tiny"), [*SMALL, *modulated]), tmp_path / "run")
    record = read_records(record_path(tmp_path / "run", 1))[0]
    turns = [t for one in record.group.valid for s in one.segments for t in s.turns]
    assert len(record.columns["entropy"]) == len(turns) and max(record.columns["entropy"]) > 0


def test_progress_of_another_model_is_refused() -> None:
    named = ("credit.estimator=returns", 'credit.shapers=[{"kind": "spa"}]', "roles.clerk.model.path=smollm2")
    with pytest.raises(ConfigError, match="the estimator of progress is of the policy's model"):
        apply_overrides(load_recipe("tiny"), [*SMALL, *named])


# ------------------------------------------------------------------------------- what others report of several models


def rl_row(run_dir: Path, step: int = 1) -> dict[str, Any]:
    rows = [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]
    return rows[step - 1]


def test_a_role_has_minibatches_of_its_own(tmp_path: Path) -> None:
    """In miles, schedules of a second policy came from the first one's batch settings (miles#2642)."""
    own = ("roles.clerk.loss.num_updates=3", "loss.num_updates=1", "groups_per_step=4")
    train(apply_overrides(load_recipe("tiny"), [*SMALL, *own]), tmp_path / "run")
    row = rl_row(tmp_path / "run")
    assert (row["updates_done"], row["role/clerk/updates_done"]) == (1, 3)


def test_a_role_that_begins_as_another_runs_samples_with_its_weights(tmp_path: Path) -> None:
    """In RLlib the restored weights of one of several policies did not reach the samplers (ray#32751)."""
    train(apply_overrides(load_recipe("tiny"), [*SMALL, "roles.clerk.optimizer.lr=1e-2"]), tmp_path / "first")
    first, clerk = tmp_path / "first" / "model", tmp_path / "first" / "roles" / "clerk" / "model"
    later = (
        f"model.path={first}",
        "sft.num_demos=0",
        f"roles.clerk.model.path={clerk}",
        "roles.clerk.optimizer.lr=1e-12",
    )
    train(apply_overrides(load_recipe("tiny"), [*SMALL, *later]), tmp_path / "second")
    row = rl_row(tmp_path / "second")
    assert row["role/clerk/trained_tokens"] > 0 and row["role/clerk/logprob_gap_max"] < 1e-4
    weights = [load_file(folder / "model.safetensors") for folder in (clerk, tmp_path / "second/roles/clerk/model")]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, atol=1e-9, rtol=0)
    assert not torch.equal(weights[0]["model.norm.weight"], load_file(first / "model.safetensors")["model.norm.weight"])


def test_a_role_that_nobody_asks_learns_nothing_and_stops_no_run(tmp_path: Path) -> None:
    """A step may have no row of a role: M-GRPO's sub-agents are called as often as the main agent likes."""
    silent = ("sft.num_demos=0", "num_steps=2")
    train(apply_overrides(load_recipe("tiny"), [*SMALL, *silent]), tmp_path / "run")
    rows = [rl_row(tmp_path / "run", step) for step in (1, 2)]
    assert all(not row.get("role/clerk/trained_tokens") and row["trained_tokens"] for row in rows)
