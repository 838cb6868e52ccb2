"""Token masks: which tokens are chosen, what that does to the loss, and that micro-batches do not matter."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from testkit.policy_updates import on_policy, state, verdicts
from testkit.token_batches import scores, tokens

from agentgym.errors import ConfigError
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.data.batch import Batch
from agentgym.trainers.data.samples import build_samples
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import BatchLogprobs
from agentgym.trainers.losses.loss import policy_loss
from agentgym.trainers.losses.options import ClipCovOptions, ForkingTokensOptions, KlCovOptions
from agentgym.trainers.losses.token_masks import TokenChoice, choose_tokens, clip_cov
from agentgym.trainers.phases.update import update_policy
from agentgym.trainers.recipes import load_recipe

MASKS: dict[str, Any] = {
    "forking_tokens": ForkingTokensOptions(),
    "clip_cov": ClipCovOptions(share=0.2, low=0.01, high=50.0),
    "kl_cov": KlCovOptions(share=0.2),
}


def placed(batch: Batch) -> Batch:
    rows = tuple(range(int(batch.row.max()) + 1))
    return replace(batch, rows=rows)


def chosen(batch: Batch, config: LossConfig, logprob: list[float], entropy: list[float], seed: int = 0) -> TokenChoice:
    values = torch.tensor(logprob, dtype=torch.float64)
    frozen = BatchLogprobs(
        logprob=values,
        logprob_old=values,
        entropy=torch.tensor(entropy, dtype=torch.float64),
    )
    gated = torch.zeros(len(logprob), dtype=torch.bool)
    (choice,) = choose_tokens([batch], [frozen], [gated], [batch["loss_weight"]], config, seed)
    return choice


@pytest.mark.parametrize(
    ("aggregation", "weight"),
    [
        ("token-mean", [0, 0.5, 0, 0, 0.5, 0]),
        ("seq-mean-token-mean", [0, 0.5, 0, 0, 0.5, 0]),
        ("seq-mean-token-sum-norm", [0, 1 / 2048, 0, 0, 1 / 2048, 0]),
    ],
)
def test_forking_tokens_alone_are_averaged(aggregation: Any, weight: list[float]) -> None:
    batch = placed(tokens([1.0] * 6, rollout=[-1.0] * 6, row=[0, 0, 0, 1, 1, 1]))
    config = LossConfig(token_masks=(ForkingTokensOptions(),), aggregation=aggregation)
    choice = chosen(batch, config, [-1.0] * 6, [0.1, 2.0, 0.3, 0.2, 1.5, 0.0])
    assert choice.weight.tolist() == pytest.approx(weight)
    leaf = torch.full((6,), -1.0, dtype=torch.float64, requires_grad=True)
    output = policy_loss(replace(scores(leaf, [-1.0] * 6), choice=choice), batch, config)
    gradient = torch.autograd.grad(output.loss, leaf)[0]
    assert gradient.tolist() == pytest.approx([-value for value in weight])
    assert output.sums["changed/forking_tokens"] == 4


def test_clip_cov_leaves_out_tokens_of_high_covariance_by_its_seed() -> None:
    cov, nothing = torch.tensor([2.0] * 50 + [0.0] * 50), torch.zeros(100, dtype=torch.bool)
    options = ClipCovOptions(share=0.1)
    one = clip_cov(cov, nothing, options, seed=1)
    assert one.sum() == 10 and not one[50:].any()
    assert torch.equal(one, clip_cov(cov, nothing, options, seed=1))
    assert not torch.equal(one, clip_cov(cov, nothing, options, seed=2))
    assert not clip_cov(cov, cov > 1, options, seed=1).any(), "tokens without a gradient are not chosen"


def test_a_token_left_out_stays_in_the_denominator() -> None:
    batch = placed(tokens([2.0, -2.0, 0.0, 0.0]))
    config = LossConfig(token_masks=(ClipCovOptions(),))
    choice = chosen(batch, config, [0.0, -3.0, -1.5, -1.5], [1.0] * 4)
    assert choice.is_kept.sum() == 3 and not choice.is_kept[:2].all()
    assert choice.weight.tolist() == [0.25] * 4


def test_kl_cov_penalises_the_change_of_its_tokens() -> None:
    batch = placed(tokens([0.0] * 3 + [1.0]))
    config = LossConfig(num_epochs=2, token_masks=(KlCovOptions(coef=0.5),), corrections=())
    choice = chosen(batch, config, [-2.0, -2.0, -2.0, 0.0], [1.0] * 4)
    assert choice.penalty.tolist() == [0, 0, 0, 0.5]
    leaf = torch.tensor([-2.0, -2.0, -2.0, 0.1], dtype=torch.float64, requires_grad=True)
    given = replace(scores(leaf, [-2.0, -2.0, -2.0, 0.0]), choice=choice)
    plain = replace(given, choice=None)
    added = policy_loss(given, batch, config).loss - policy_loss(plain, batch, config).loss
    assert added.item() == pytest.approx(0.25 * 0.5 * 0.1)
    assert torch.autograd.grad(added, leaf)[0].tolist() == pytest.approx([0, 0, 0, 0.25 * 0.5])


@pytest.mark.parametrize("kind", sorted(MASKS))
def test_the_choice_does_not_depend_on_micro_batches(small_model: Any, kind: str) -> None:
    base = LossConfig(num_updates=2, num_epochs=2, token_masks=(MASKS[kind],), layout="rows")
    groups = on_policy(small_model)
    models = {}
    for name, loss in {
        "one": base,
        "small": replace(base, tokens_per_microbatch=12, layout="packed"),
        "without": replace(base, token_masks=()),
    }.items():
        models[name] = copy.deepcopy(small_model)
        optimizer = torch.optim.SGD(models[name].parameters(), lr=0.3)
        metrics = update_policy(models[name], optimizer, groups, loss, temperature=1.0, max_grad_norm=1.0).metrics
        assert ("changed/" + kind in metrics) == (name != "without")
    one, small, without = (state(models[name]) for name in ("one", "small", "without"))
    for name, value in one.items():
        torch.testing.assert_close(small[name], value, atol=2e-6, rtol=1e-3)
    assert any(not torch.allclose(without[name], one[name], atol=1e-4) for name in one)


def test_a_step_without_tokens_is_no_trouble(small_model: Any) -> None:
    loss = LossConfig(num_epochs=2, token_masks=tuple(MASKS.values()))
    optimizer = torch.optim.SGD(small_model.parameters(), lr=0.3)
    silent = [replace(verdict, dropped="zero_variance") for verdict in verdicts()]
    assert not build_samples(silent)
    metrics = update_policy(small_model, optimizer, silent, loss, temperature=1.0, max_grad_norm=1.0).metrics
    assert metrics["updates_done"] == 0


def test_masks_are_read_by_kind_and_refused_where_they_cannot_act() -> None:
    recipe: TrainConfig = load_recipe("tiny")
    key = 'loss.token_masks=[{"kind": "forking_tokens", "share": 0.5}, {"kind": "clip_cov"}]'
    made = apply_overrides(recipe, [key])
    assert made.loss.token_masks == (ForkingTokensOptions(share=0.5), ClipCovOptions())
    with pytest.raises(ConfigError, match="kl_cov acts from a step's second update on"):
        LossConfig(token_masks=(KlCovOptions(),))
    with pytest.raises(ConfigError, match="named twice"):
        LossConfig(token_masks=(ClipCovOptions(), ClipCovOptions()))
    with pytest.raises(ConfigError, match="share must be above 0"):
        ForkingTokensOptions(share=0.0)
    with pytest.raises(ConfigError, match="low < high"):
        ClipCovOptions(low=5.0)
