"""VCPO's baseline: worked numbers, the gradient against its formula, and where it is refused."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from testkit.counting_runs import config
from testkit.policy_updates import on_policy
from torch import Tensor

from agentgym.errors import ConfigError
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.data.batch import Batch, build_batches
from agentgym.trainers.data.row import Row
from agentgym.trainers.data.samples import FilteredGroup, build_samples
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.loss import token_logprobs
from agentgym.trainers.losses.opob import opob_baselines
from agentgym.trainers.losses.options import SequenceTisOptions, VcpoOptions
from agentgym.trainers.phases.update import update_policy
from agentgym.trainers.train import train

OPEN: dict[str, Any] = {"clip_low": 1.0, "clip_high": 1e6}


def stale(model: Any) -> list[FilteredGroup]:
    """Groups whose tokens were sampled by another policy than the model; returns are 0, 1 and 2."""
    made = on_policy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.02)
    groups = [verdict.group for verdict in made]
    returns = [[float(at) for at, t in enumerate(g.trajectories) if t in g.valid for _ in t.turns] for g in groups]
    return [
        replace(verdict, credit=replace(verdict.credit, advantage=np.array(advantage)))
        for verdict, advantage in zip(made, returns, strict=True)
    ]


def gradient_of(model: Any, values: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(values, list(model.parameters()), retain_graph=True))


def test_the_baseline_of_the_worked_example() -> None:
    weight, norm = torch.tensor([1.0, 1.0, 1.0, 5.0]), torch.tensor([1.0, 2.0, 1.0, 1.0])
    returns, group = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.zeros(4, dtype=torch.long)
    assert opob_baselines(returns, weight.log(), norm.square(), group).tolist() == pytest.approx(
        [0.064516] * 4, abs=1e-6
    )


def test_groups_have_baselines_of_their_own_and_a_group_without_gradients_has_none() -> None:
    ones = torch.ones(5)
    returns, group = torch.tensor([1.0, 3.0, 5.0, 7.0, 9.0]), torch.tensor([0, 0, 1, 1, 2])
    energy = torch.tensor([1.0, 1.0, 1.0, 3.0, 0.0])
    assert opob_baselines(returns, 0 * ones, energy, group).tolist() == pytest.approx([2, 2, 6.5, 6.5, 0])


def literal_gradient(
    model: Any, samples: list[Row], energy_of: Literal["gradient", "proxy"], cap: float
) -> list[Tensor]:
    """``1 / M sum_i min(w_i, cap) (R_i - b) grad_i``, trajectory by trajectory; each window is weighed by itself."""
    batches: dict[int, list[Batch]] = {}
    for sample in samples:
        (batch,) = build_batches([sample], layout="rows")
        batches.setdefault(sample.trajectory, []).append(batch)
    group = {sample.trajectory: sample.ordinal for sample in samples}
    gradients, weights, returns = {}, {}, {}
    for number, parts in batches.items():
        loss, log_weight, energy = torch.zeros(()), 0.0, 0.0
        for batch in parts:
            logprob, _ = token_logprobs(model, batch, 1.0)
            gap = (logprob - batch["logprob_rollout"]).detach().sum()
            loss = loss + gap.exp().clamp(max=cap) * logprob.sum()
            log_weight += float(gap)
            logits = model(input_ids=batch.layout.input_ids).logits[0]
            probability = logits.softmax(-1)[batch.state]
            norm = 1 - 2 * probability[range(len(batch.target)), batch.target] + probability.square().sum(-1)
            energy += float(norm.detach().sum())
        gradients[number] = gradient_of(model, loss)
        if energy_of == "gradient":
            energy = sum(float(part.square().sum()) for part in gradients[number])
        weights[number] = energy * math.exp(2 * log_weight)
        returns[number] = float(parts[0]["advantage"][0])
    total = [torch.zeros_like(parameter) for parameter in model.parameters()]
    num_tokens = sum(batch.num_tokens for parts in batches.values() for batch in parts)
    for number in batches:
        mates = [other for other in batches if group[other] == group[number]]
        baseline = sum(weights[m] * returns[m] for m in mates) / sum(weights[m] for m in mates)
        for at, part in enumerate(gradients[number]):
            total[at] -= (returns[number] - baseline) * part / num_tokens
    return total


@pytest.mark.parametrize("baseline", ["gradient", "proxy"])
def test_the_update_is_the_gradient_of_the_formula(small_model: Any, baseline: Any) -> None:
    vcpo = VcpoOptions(baseline=baseline, scale="linear")
    loss = LossConfig(corrections=(SequenceTisOptions(cap=3.0), vcpo), tokens_per_microbatch=20, **OPEN)
    groups = stale(small_model)
    expected = literal_gradient(small_model, build_samples(groups), baseline, cap=3.0)
    before = copy.deepcopy(list(small_model.parameters()))
    optimizer = torch.optim.SGD(small_model.parameters(), lr=1.0)
    metrics = update_policy(small_model, optimizer, groups, loss, temperature=1.0, max_grad_norm=1e9).metrics
    scale = metrics.get("lr_scale", 1.0)
    for old, new, gradient in zip(before, small_model.parameters(), expected, strict=True):
        torch.testing.assert_close(old - new, scale * gradient, atol=2e-6, rtol=2e-3)


def test_without_a_baseline_the_gradient_is_another_one(small_model: Any) -> None:
    groups = stale(small_model)
    norms = {}
    for baseline in ("none", "gradient", "proxy"):
        model = copy.deepcopy(small_model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = LossConfig(corrections=(SequenceTisOptions(), VcpoOptions(baseline=baseline)), num_epochs=2)
        norms[baseline] = update_policy(model, optimizer, groups, loss, temperature=1.0, max_grad_norm=1e9).metrics[
            "grad_norm"
        ]
    assert len(set(norms.values())) == 3


VCPO = 'loss.corrections=[{"kind": "seq_tis"}, {"kind": "vcpo", "baseline": "gradient"}]'


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["credit.estimator=grpo"], "composition rule 19"),
        (["credit.estimator=spo"], "composition rule 19"),
        (["credit.estimator=returns", 'credit.modulators=[{"kind": "salt"}]'], "leave credit.modulators out"),
        (["credit.estimator=returns", "loss.num_updates=2", "loss.minibatch=tokens"], "set minibatch=episodes"),
    ],
)
def test_what_the_baseline_cannot_go_with_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_overrides(config(), [VCPO, *overrides])


def test_a_run_trains_with_the_baseline(tmp_path: Path) -> None:
    train(
        apply_overrides(config(num_steps=2), [VCPO, "credit.estimator=returns", "zero_variance_filter=off"]),
        tmp_path / "run",
    )
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert len(rows) == 2 and all(math.isfinite(row["loss"]) for row in rows)
    assert any(row["grad_norm"] > 0 for row in rows)
