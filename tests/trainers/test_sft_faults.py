"""Warm starts that meet rows without weights, gradients that are not finite, few rows, and oracles that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from testkit import TESTKIT
from testkit.counting_runs import config

from agentgym.errors import RunStoppedError, UsageError
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.critics.critic import optimizer_step
from agentgym.trainers.data.row import Row
from agentgym.trainers.data.weighted_row import WeightedRow, is_taught
from agentgym.trainers.models.optimizer import OptimizerConfig
from agentgym.trainers.phases.optimizer_step import clip_and_step
from agentgym.trainers.phases.sft import batches_note, sft_steps
from agentgym.trainers.train import train

WRONG_ORACLES = TESTKIT / "wrong_oracles.py"


@pytest.fixture
def poisoned(small_model: Any) -> Iterator[Any]:
    """A model whose gradients are NaN although its loss is finite."""
    hook = next(small_model.parameters()).register_hook(lambda gradient: gradient * float("nan"))
    yield small_model
    hook.remove()


def row(*, weight: float = 1.0) -> Row:
    return WeightedRow((1, 2, 3, 4), np.full(4, weight, np.float32), np.ones(4, dtype=bool))


def test_every_optimizer_step_is_refused_for_a_gradient_that_is_not_finite(poisoned: Any) -> None:
    before = {name: value.clone() for name, value in poisoned.state_dict().items()}
    sgd = torch.optim.SGD(poisoned.parameters(), lr=0.1)
    steps = sft_steps(poisoned, sgd, [row(), row()], SftConfig(num_demos=2, batch_size=2), 0, 0)
    with pytest.raises(RunStoppedError, match=r"sft step 0: the gradient's norm is nan; lower sft\.optimizer\.lr"):
        next(steps)
    makers: list[Callable[[], float]] = [
        lambda: clip_and_step(poisoned, sgd, 1.0, 1.0),
        lambda: optimizer_step(poisoned, sgd, 1.0),
    ]
    for step in makers:
        sgd.zero_grad()
        poisoned(torch.tensor([[1, 2, 3]])).logits.sum().backward()
        with pytest.raises(RunStoppedError, match="is nan; lower"):
            step()
    assert all(torch.equal(value, before[name]) for name, value in poisoned.state_dict().items())


@pytest.mark.parametrize("trainer", ["own", "trl"])
def test_rows_without_weights_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trainer: Any
) -> None:
    """With DART's weight 0 and a row for each turn, a row of a random action alone teaches nothing."""
    if trainer == "trl":
        pytest.importorskip("trl")
    sft = SftConfig(
        num_demos=30, noise=0.5, noise_weight=0.0, observation_weight=0.0, batch_size=1, num_epochs=1, trainer=trainer
    )
    run = apply_overrides(config(sft=sft, num_steps=0, eval=config().eval), ["context.policy=window"])
    train(run, tmp_path / "run")
    said = capsys.readouterr().err
    assert "rows are left out, since none of their tokens has a weight (sft.loss_roles=assistant, sft.noise_" in said
    losses = [one["loss"] for one in read_json_lines(tmp_path / "run" / "metrics.jsonl") if one["phase"] == "sft"]
    assert len(losses) > 10 and np.isfinite(losses).all()
    assert not is_taught(row(weight=0.0)) and is_taught(row(weight=0.5))


@pytest.mark.parametrize(
    ("num_rows", "said"),
    [
        (9, "no warm start, 9 rows are fewer than sft.batch_size=16"),
        (30, "30 rows make 2 steps of sft.batch_size=16, and each epoch leaves out 14 of them; the full rate is never"),
        (160, ""),
    ],
)
def test_few_rows_are_said(num_rows: int, said: str) -> None:
    note = batches_note(SftConfig(num_demos=1, optimizer=OptimizerConfig(warmup_steps=20)), num_rows)
    assert said in note and bool(said) == bool(note)


def demonstrated(name: str, noise: float) -> Any:
    sft = SftConfig(num_demos=16, noise=noise, batch_size=4, num_epochs=1)
    return apply_overrides(config(sft=sft, num_steps=0), [f"env.id={WRONG_ORACLES}:{name}"])


@pytest.mark.parametrize(
    ("name", "noise", "said"),
    [
        (
            "Off-v0",
            0.0,
            r"succeeds in 19% of its own tasks: 13 ended without success, one after the answer 'Wrong.' to",
        ),
        ("Endless-v0", 0.0, r"succeeds in 0% of its own tasks: 16 met the limit of turns \(env\.kwargs\.max_turns\)"),
        ("Endless-v0", 0.01, r"succeeds in 0% of its own tasks: 4 met the limit of turns"),
    ],
)
def test_an_oracle_that_fails_its_own_tasks_stops_the_run(tmp_path: Path, name: str, noise: float, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        train(demonstrated(name, noise), tmp_path / "run")


def test_an_oracle_that_rarely_fails_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(replace(demonstrated("OffRarely-v0", 0.0), num_steps=0), tmp_path / "run")
    assert "note: OffRarely-v0: the oracle alone, without random actions, succeeds in" in capsys.readouterr().err


def test_trl_stops_before_a_step_that_is_not_finite(poisoned: Any) -> None:
    pytest.importorskip("trl")
    from agentgym.trainers.trl.sft import _AfterStep

    watching = _AfterStep(lambda metrics: None)
    watching.on_pre_optimizer_step(model=poisoned)  # no gradient yet
    poisoned(torch.tensor([[1, 2, 3]])).logits.sum().backward()
    with pytest.raises(RunStoppedError, match=r"the gradient is not finite; lower sft\.optimizer\.lr"):
        watching.on_pre_optimizer_step(model=poisoned)
