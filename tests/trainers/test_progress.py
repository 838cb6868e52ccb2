"""SPA's progress estimator: what it learns, that windows and micro-batches do not matter, and a run that uses it."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from testkit import counting_runs
from testkit.checkpoints import drop_checkpoint, read_checkpoint
from testkit.made_groups import group, trajectory, turn, two_groups

from agentgym.credit.compose import CreditConfig, CreditResult, credit_groups
from agentgym.credit.shapers.progress import SpaOptions
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import CriticConfig, EvalConfig, TrainConfig
from agentgym.trainers.critics.critic import after_turns
from agentgym.trainers.critics.progress import ProgressEstimator
from agentgym.trainers.train import train
from agentgym.types import TrajectoryGroup

SPA = CreditConfig(estimator="grpo", shapers=(SpaOptions(),))


def learn(estimator: ProgressEstimator, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    result: CreditResult = credit_groups(groups, SPA, columns=estimator.columns(groups))
    return estimator.learn(groups, result)


def test_progress_is_read_after_each_turns_last_token() -> None:
    (segment,) = two_groups()[0].trajectories[0].segments
    assert segment.loss_mask == (0, 0, 0, 1, 1, 0, 1, 1, 1)
    assert tuple(after_turns(segment)) == (4, 8)


def worlds() -> list[TrajectoryGroup]:
    """Two kinds of first turn: token 30 leads to the reward at the end, token 31 to none."""
    good = [trajectory([turn([1, n], [30]), turn([6], [7], reward=1.0)]) for n in (9, 10)]
    bad = [trajectory([turn([1, n], [31]), turn([6], [7], reward=0.0)]) for n in (9, 10)]
    return [group(*good, *bad)]


@pytest.mark.parametrize("trunk", ["copy", "shared"])
def test_the_sum_over_an_episode_learns_its_reward(small_model: Any, trunk: Any) -> None:
    estimator = ProgressEstimator(small_model, CriticConfig(trunk=trunk, lr=3e-3, num_updates=8, fit_updates=0), seed=0)
    assert not estimator.columns(worlds())["progress"].any(), "the head begins at 0"
    numbers = [learn(estimator, worlds()) for _ in range(20)]
    assert numbers[0]["progress_loss"] == pytest.approx(0.5) and numbers[-1]["progress_loss_last"] < 0.02
    progress = estimator.columns(worlds())["progress"].reshape(4, 2)
    np.testing.assert_allclose(progress.sum(axis=1), [1, 1, 0, 0], atol=0.2)
    assert (progress[:2, 0] > progress[2:, 0] + 0.2).all(), "the turn that decides is told from the other"


def test_it_is_fitted_before_it_credits(small_model: Any) -> None:
    estimator = ProgressEstimator(small_model, CriticConfig(lr=3e-3), seed=0)
    sums = estimator.columns(worlds())["progress"].reshape(4, 2).sum(axis=1)
    assert sums[:2].min() > sums[2:].max() + 0.3, "the first step's successes are told from its failures"


def test_gradients_do_not_depend_on_micro_batches(small_model: Any) -> None:
    learnt = []
    for tokens in (8192, 1):
        settings = CriticConfig(tokens_per_microbatch=tokens, num_updates=2)
        estimator = ProgressEstimator(small_model, settings, seed=0)
        learn(estimator, two_groups())
        learnt.append(estimator.columns(two_groups())["progress"])
    assert np.abs(learnt[0]).max() > 1e-4
    np.testing.assert_allclose(learnt[0], learnt[1], atol=1e-4)


def test_it_goes_on_from_its_state(small_model: Any) -> None:
    one, other = (ProgressEstimator(small_model, CriticConfig(), seed=0) for _ in range(2))
    learn(one, two_groups())
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for estimator in (one, other):
        learn(estimator, two_groups())
    assert np.array_equal(one.columns(two_groups())["progress"], other.columns(two_groups())["progress"])


def config(*overrides: str, num_steps: int) -> TrainConfig:
    made = counting_runs.config(num_steps=num_steps, eval=EvalConfig(num_episodes=2), checkpoint_every=1)
    return apply_overrides(made, ['credit.shapers=[{"kind": "spa"}]', *overrides])


@pytest.mark.parametrize("estimator", ["grpo", "turn_gae"])
def test_a_run_with_spa_trains_and_resumes_bit_for_bit(estimator: str, tmp_path: Path) -> None:
    settings = config(f"credit.estimator={estimator}", "critic.lr=1e-3", "zero_variance_filter=off", num_steps=2)
    train(settings, tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert all(math.isfinite(value) for row in rows for value in row.values() if isinstance(value, float))
    assert all(row["progress_loss"] > 0 for row in rows) and rows[-1]["trained_tokens"] > 0
    assert all(row["credit/changed/spa"] > 0 for row in rows)
    whole = read_checkpoint(tmp_path / "run", 2)
    drop_checkpoint(tmp_path / "run", 2)
    (tmp_path / "run" / "model" / "model.safetensors").unlink()
    train(settings, tmp_path / "run", resume=True)
    again = read_checkpoint(tmp_path / "run", 2)
    networks = [saved["columns"]["env"]["progress"]["network"] for saved in (whole, again)]
    assert all(torch.equal(value, networks[1][name]) for name, value in networks[0].items())
    assert all(torch.equal(value, again["model"][name]) for name, value in whole["model"].items())
