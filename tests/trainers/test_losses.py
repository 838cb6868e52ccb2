"""Losses, corrections, regularisers and denominators against worked numbers, literal references and each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from testkit.token_batches import assert_close, frozen_tokens, logs, normaliser, sample, scores, tokens
from torch import Tensor

from agentgym.errors import ConfigError
from agentgym.trainers.data.batch import Batch, build_batches
from agentgym.trainers.data.layout import PaddedRows
from agentgym.trainers.data.plan import token_weights
from agentgym.trainers.data.row import Row
from agentgym.trainers.losses import correction, policy, regularisers
from agentgym.trainers.losses import options as of
from agentgym.trainers.losses.component import POLICY_LOSSES, Aggregation
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import BatchLogprobs, UpdateStatistics, update_facts
from agentgym.trainers.losses.loss import correction_weight, gated_loss, policy_loss, token_logprobs
from agentgym.trainers.losses.ratios import prefix_minimum
from agentgym.trainers.losses.regularisers import EntropyHistory


def per_token(
    config: LossConfig, log_ratio: Sequence[float], advantage: Sequence[float], facts: UpdateStatistics | None = None
) -> list[float]:
    return gated_loss(scores(log_ratio), tokens(advantage), config, facts or UpdateStatistics())[0].tolist()


# ---------------------------------------------------------------------------------------------------- denominators


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token-mean", 0.666667),
        ("seq-mean-token-mean", 0.75),
        ("seq-mean-token-sum", 2.0),
        ("seq-mean-token-sum-norm", 0.25),
    ],
)
def test_aggregation(aggregation: str, expected: float) -> None:
    values, units = [1.0, 1.0, 0.0, 0.0, 0.0, 2.0], [0, 0, 1, 1, 1, 1]
    weights = token_weights(np.array(units), aggregation, norm_length=8)
    assert sum(w * v for w, v in zip(weights, values, strict=True)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_every_aggregation_is_a_mean(aggregation: str) -> None:
    """Ten times as many equal sequences leave a loss of 1 a token as it is."""

    def loss_of_ones(times: int) -> float:
        units = np.concatenate([np.repeat([2 * k, 2 * k + 1], [3, 5]) for k in range(times)])
        return float(token_weights(units, aggregation, norm_length=8).sum())

    assert loss_of_ones(10) == pytest.approx(loss_of_ones(1))


def test_rows_without_sampled_tokens_are_no_rows() -> None:
    (batch,) = build_batches([sample(2, 2), sample(3, 0, trajectory=1)], aggregation="seq-mean-token-mean")
    assert_close(batch["loss_weight"], [0.5, 0.5])


def test_segments_of_a_trajectory_are_one_unit_and_turns_are_one_each() -> None:
    rows = [sample(2, 2, turns=[0, 0]), sample(2, 4, turns=[1, 1, 1, 2]), sample(2, 2, trajectory=1)]
    (by_trajectory,) = build_batches(rows, aggregation="seq-mean-token-mean")
    assert_close(by_trajectory["loss_weight"], [1 / 12] * 2 + [1 / 4] * 2 + [1 / 12] * 4)
    (by_turn,) = build_batches(rows, aggregation="seq-mean-token-mean", unit="turn")
    assert_close(by_turn["loss_weight"], [1 / 8] * 2 + [1 / 8] * 2 + [1 / 12] * 3 + [1 / 4])
    assert by_turn["turn"].tolist() == [0, 0, 1, 1, 2, 2, 2, 3]
    assert by_turn["turn_index"].tolist() == [0, 0, 0, 0, 1, 1, 1, 2]


# --------------------------------------------------------------------------------------- worked examples: losses


def test_ppo_clip() -> None:
    loss = per_token(LossConfig(), [0.3, -0.4, 0.05, -0.1], [1, 1, -1, -1])
    assert_close(loss, [-1.28, -0.670320, 1.051271, 0.904837])
    was_clipped = gated_loss(scores([0.3, -0.4]), tokens([1, 1]), LossConfig(), UpdateStatistics())[1]
    assert was_clipped.tolist() == [True, False]


def test_dual_clip() -> None:
    assert_close(per_token(LossConfig(dual_clip=3.0), [math.log(5)], [-1]), [3.0])
    assert_close(per_token(LossConfig(), [math.log(5)], [-1]), [5.0])
    assert LossConfig(kind="dapo").dual == 3.0


def test_gspo() -> None:
    config = LossConfig(kind="gspo", ratio_level="sequence")
    assert_close(per_token(config, [0.06, -0.03, 0.03], [1, 1, 1]), [-1.0004] * 3)
    assert_close(per_token(config, [0.06, -0.03, 0.03], [-1, -1, -1]), [1.020201] * 3)


def test_gspo_over_turns_takes_each_turn_alone() -> None:
    batch = tokens([1.0, 1.0, -1.0], turn=[0, 0, 1])
    loss, _ = gated_loss(scores([0.2, 0.0, 0.4]), batch, LossConfig(kind="gspo", clip_high=1.0), UpdateStatistics())
    assert_close(loss, [-math.exp(0.1)] * 2 + [math.exp(0.4)])


def test_cispo() -> None:
    logprob = torch.tensor([-2.0, -1.0, -0.5], dtype=torch.float64, requires_grad=True)
    old = logprob.detach() - torch.tensor(logs([0.5, 1, 3]), dtype=torch.float64)
    given_scores = BatchLogprobs(logprob=logprob, logprob_old=old, entropy=torch.zeros(3))
    loss, _ = gated_loss(given_scores, tokens([1, 1, 1]), LossConfig(kind="cispo"), UpdateStatistics())
    assert_close(-torch.autograd.grad(loss.sum(), logprob)[0], [0.5, 1.0, 1.28])


def test_sapo() -> None:
    ratios = [0.5, 1.0, 1.5, 2.0]
    assert_close(
        [-x for x in per_token(LossConfig(kind="sapo"), logs(ratios), [1] * 4)], [1.510163, 2, 2.489837, 2.924234]
    )
    assert_close(per_token(LossConfig(kind="sapo"), logs(ratios), [-1] * 4), [1.415938, 1.904762, 2.393585, 2.822000])
    ratio = torch.tensor(ratios, dtype=torch.float64, requires_grad=True)
    loss, _ = policy.sapo(ratio, torch.ones(4, dtype=torch.float64))
    assert_close(-torch.autograd.grad(loss.sum(), ratio)[0], [0.940015, 1, 0.940015, 0.786448])


def test_minpro() -> None:
    ratio = torch.tensor([1.1, 0.6, 1.3, 0.9])
    row = torch.zeros(4, dtype=torch.long)
    assert_close(policy.minpro_ratio(ratio, row), [1.1, 0.66, 0.78, 0.54])
    assert_close(policy.minpro_ratio(ratio, row, cap_min_at_1=True), [1.1, 0.6, 0.78, 0.54])
    wide = LossConfig(kind="minpro", clip_low=1.0, clip_high=9.0)
    assert_close(per_token(wide, logs([1.1, 0.6, 1.3, 0.9]), [1] * 4), [-1.1, -0.66, -0.78, -0.54])


def test_bapo() -> None:
    ratios, advantage = [0.5, 1, 1.5, 0.9], [1.0, -1.0, 1.0, -1.0]
    config = LossConfig(kind="bapo", options=of.BapoOptions(target=0.95))
    new = scores(logs(ratios))
    frozen = frozen_tokens(new.logprob, new.logprob_old)
    facts = update_facts([tokens(advantage)], [frozen], config)
    assert facts.prepared["loss", "bapo"]["ratio_bounds"] == pytest.approx((0.8, 1.35))
    assert_close(per_token(config, logs(ratios), advantage, facts), [-0.5, 1.0, -1.35, 0.9])
    assert_close(per_token(config, [math.log(5)], [-1.0], facts), [3.0])  # dual clip


def test_bapo_cuts_its_last_step_short() -> None:
    """The bounds reach their limits where those are no whole number of steps away."""
    options = of.BapoOptions(low_max=1.0, step=0.25, high_max=1.3, target=9.0)
    assert policy.bapo_bounds(torch.ones(2), torch.tensor([1.0, -1.0]), options) == (1.0, 1.3)


def test_bapo_without_negative_contributions_searches_nothing() -> None:
    assert policy.bapo_bounds(torch.ones(3), torch.ones(3), of.BapoOptions()) == (0.6, 1.2)


def test_aepo_clip() -> None:
    logprob = torch.tensor(logs([2.0, 1.1, 0.5, 5.0, 0.5]), dtype=torch.float64, requires_grad=True)
    config = LossConfig(kind="aepo_clip", clip_high=0.25)
    batch = tokens([1.0, 1.0, 1.0, -1.0, -1.0])
    loss, was_clipped = gated_loss(scores(logprob), batch, config, UpdateStatistics())
    assert_close(loss, [-1.25, -1.1, -0.5, 3.0, 0.8])
    assert_close(torch.autograd.grad(loss.sum(), logprob)[0], [-1.25, -1.1, -0.5, 0.0, 0.0])
    assert was_clipped.tolist() == [False, False, False, True, True]


def test_reinforce() -> None:
    """In bypass mode the old policy is the engine's: truncated importance sampling of REINFORCE."""
    logprob = torch.tensor([-1.0, -1.0], dtype=torch.float64, requires_grad=True)
    old = logprob.detach() - torch.tensor(logs([1.5, 4.0]), dtype=torch.float64)
    config = LossConfig(kind="reinforce", mode="bypass", corrections=())
    given_scores = BatchLogprobs(logprob=logprob, logprob_old=old, entropy=torch.zeros(2))
    loss, _ = gated_loss(given_scores, tokens([1.0, -1.0]), config, UpdateStatistics())
    assert_close(torch.autograd.grad(loss.sum(), logprob)[0], [-1.5, 2.0])


def test_rl_plus() -> None:
    """Demonstrated tokens: 2 pi / (1.5 pi_old + 0.5) times A (1 - pi)^0.5; the others: PPO-clip."""
    logprob = torch.tensor(logs([0.5, 0.36, 0.5]), dtype=torch.float64, requires_grad=True)
    old = torch.tensor(logs([0.25, 0.36, 0.25]), dtype=torch.float64)
    batch = tokens([1.0, 2.0, 1.0]).with_columns(demonstrated=torch.tensor([True, True, False]))
    given_scores = BatchLogprobs(logprob=logprob, logprob_old=old, entropy=torch.zeros(3))
    loss, was_clipped = gated_loss(given_scores, batch, LossConfig(kind="rl_plus"), UpdateStatistics())
    first, second = -(1 / 0.875) * 0.5**0.5, -(0.72 / 1.04) * 2 * 0.8
    assert_close(loss, [first, second, -1.28])
    assert_close(torch.autograd.grad(loss.sum(), logprob)[0], [first, second, 0.0])
    assert was_clipped.tolist() == [False, False, True]


def test_rl_plus_without_demonstrations_is_ppo_clip() -> None:
    log_ratio, advantage = [0.3, -0.4, 0.05, -0.1], [1.0, 1.0, -1.0, -1.0]
    assert per_token(LossConfig(kind="rl_plus"), log_ratio, advantage) == per_token(LossConfig(), log_ratio, advantage)


def test_opmd() -> None:
    logprob = torch.tensor([-1.0, -3.0], dtype=torch.float64, requires_grad=True)
    batch, config = tokens([1.0, -0.5]), LossConfig(kind="opmd", options=of.OpmdOptions(tau=0.25), corrections=())
    loss, was_gated = gated_loss(scores(logprob), batch, config, UpdateStatistics())
    assert_close(loss, [0.8, -1.2])
    assert_close(torch.autograd.grad(loss.sum(), logprob)[0], [-0.8, 0.4])
    assert not was_gated.any()


def test_opmd_squared() -> None:
    """Its sum over a sequence is (A - tau l)^2 / (2 tau), less what has no gradient, and so is its gradient."""
    logprob = torch.tensor([-0.8, -1.5, -0.6], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64)
    batch = tokens([1.0, 1.0, -0.5], row=[0, 0, 1])
    given_scores = BatchLogprobs(logprob=logprob, logprob_old=old, entropy=torch.zeros(3))
    config = LossConfig(kind="opmd_squared", options=of.OpmdSquaredOptions(tau=0.5), corrections=())
    loss, _ = gated_loss(given_scores, batch, config, UpdateStatistics())
    first, second = (logprob[:2] + 1).sum(), logprob[2] + 1
    squared = ((1.0 - 0.5 * first) ** 2 - 1.0) + ((-0.5 - 0.5 * second) ** 2 - 0.25)
    assert loss.sum().item() == pytest.approx(squared.item())
    (expected,) = torch.autograd.grad(squared, logprob)
    assert_close(torch.autograd.grad(loss.sum(), logprob)[0], expected.tolist())
    assert_close(expected, [-1.15, -1.15, 0.7])


def test_opmd_squared_over_turns_takes_each_turn_alone() -> None:
    logprob = torch.tensor([-0.8, -1.5], dtype=torch.float64, requires_grad=True)
    given_scores = BatchLogprobs(
        logprob=logprob, logprob_old=torch.full((2,), -1.0, dtype=torch.float64), entropy=torch.zeros(2)
    )
    config = LossConfig(kind="opmd_squared", options=of.OpmdSquaredOptions(tau=0.5, level="turn"), corrections=())
    loss, _ = gated_loss(given_scores, tokens([1.0, 1.0], turn=[0, 1]), config, UpdateStatistics())
    assert_close(torch.autograd.grad(loss.sum(), logprob)[0], [-0.9, -1.25])


# ---------------------------------------------------------------------------------- worked examples: corrections


def weights(
    config: LossConfig, log_rho: Sequence[float], facts: UpdateStatistics | None = None, **layout: Any
) -> Tensor:
    batch = tokens([1.0] * len(log_rho), **layout)
    return correction_weight(torch.tensor(log_rho, dtype=torch.float64), batch, config, facts or UpdateStatistics())


RHO = [0.3, 0.9, 1.2, 4, 6]


def test_token_tis() -> None:
    assert_close(weights(LossConfig(), logs(RHO)), [0.3, 0.9, 1.2, 2, 2])
    assert_close(weights(LossConfig(corrections=()), logs(RHO)), [1.0] * 5)


def test_icepop() -> None:
    assert_close(weights(LossConfig(corrections=(of.IcepopOptions(),)), logs(RHO)), [0, 0.9, 1.2, 4, 0])


def test_sequence_corrections() -> None:
    log_rho = [0.2, 0.3, 0.4]
    assert_close(weights(LossConfig(corrections=(of.SequenceTisOptions(cap=9),)), log_rho), [2.459603] * 3)
    assert_close(weights(LossConfig(corrections=(of.SequenceTisOptions(),)), log_rho), [2.0] * 3)
    assert_close(
        weights(LossConfig(corrections=(of.SequenceTisOptions(cap=9, level="turn"),)), log_rho, turn=[0, 0, 1]),
        [math.exp(0.5)] * 2 + [math.exp(0.4)],
    )
    for high, kept in ((2.0, 0.0), (2.5, 1.0)):
        assert_close(weights(LossConfig(corrections=(of.SequenceMisOptions(high=high),)), log_rho), [kept] * 3)
    ratio = of.SequenceMisOptions(high=2.5, weight="ratio")
    assert_close(weights(LossConfig(corrections=(ratio,)), log_rho), [2.459603] * 3)
    for high, kept in ((1.34, 0.0), (1.36, 1.0)):  # the geometric mean is 1.349859
        assert_close(weights(LossConfig(corrections=(of.GeometricOptions(low=0.5, high=high),)), log_rho), [kept] * 3)
    assert of.SequenceMisOptions(high=4.0).band == (0.25, 4.0)


def test_divergence_rejection() -> None:
    log_rho = [0.1, 1.0, 0.2]
    k2 = of.DivergenceRejectionOptions(estimator="k2", threshold=0.3)
    assert_close(weights(LossConfig(corrections=(k2,)), log_rho), [1, 0, 1])
    k3 = of.DivergenceRejectionOptions(threshold=0.3, level="sequence_max")
    assert_close(weights(LossConfig(corrections=(k3,)), log_rho, row=[0, 0, 1]), [0, 0, 1])
    mean = of.DivergenceRejectionOptions(threshold=0.5, level="sequence_mean")
    assert_close(weights(LossConfig(corrections=(mean,)), log_rho, row=[0, 0, 1]), [1, 1, 1])


def test_m2po() -> None:
    squares = [0.01, 0.5, 0.04, 0.0, 0.02]
    config = LossConfig(corrections=(of.M2poOptions(threshold=0.05),))
    log_rho = torch.tensor([math.sqrt(x) for x in squares], dtype=torch.float64)
    batch = tokens([1.0] * 5)
    facts = update_facts([batch], [frozen_tokens(log_rho)], config)
    assert_close(correction_weight(log_rho, batch, config, facts), [1, 0, 1, 1, 1])
    assert_close(facts.share_of(batch), [0.25, 0, 0.25, 0.25, 0.25])


def test_m2po_keeps_one_token_and_drops_equal_ones_in_order() -> None:
    options = of.M2poOptions(threshold=0.05)
    assert correction.m2po_mask(torch.tensor([1.0, 1.0, 1.0]), options).tolist() == [False, False, True]
    assert correction.m2po_mask(torch.tensor([0.35, 0.0, 0.35, 0.0]), options).tolist() == [False, True, True, True]


# thresholds that no mean of the squares equals, where rounding would decide
@given(st.lists(st.integers(0, 12), min_size=1, max_size=12), st.integers(1, 2000).map(lambda n: n / 1000 + 0.00037))
def test_m2po_leaves_out_the_fewest_largest(tenths: list[int], threshold: float) -> None:
    log_rho = torch.tensor([x / 10 for x in tenths], dtype=torch.float64)
    rest = sorted(log_rho.square().tolist())
    while len(rest) > 1 and sum(rest) / len(rest) >= threshold:
        rest.pop()
    kept = log_rho.square()[correction.m2po_mask(log_rho, of.M2poOptions(threshold=threshold))]
    assert sorted(kept.tolist()) == pytest.approx(rest)


def test_decoupled_ppo() -> None:
    """AReaL's worked token: weight and ratio are kept apart; a coupled PPO would clip their product at 1.2."""
    config = LossConfig(corrections=(of.DecoupledOptions(cap=2.0, action="clamp"),), clip_high=0.2)
    batch = tokens([1.0], rollout=[-1.0])
    new = scores([-0.7], [-0.8])
    assert_close(correction_weight(new.logprob_old, batch, config, UpdateStatistics()), [1.221403])
    assert policy_loss(new, batch, config).loss.item() == pytest.approx(-1.349859, abs=1e-5)
    coupled = LossConfig(mode="bypass", corrections=(), clip_high=0.2)
    assert policy_loss(scores([-0.7], [-1.0]), batch, coupled).loss.item() == pytest.approx(-1.2)
    masked = LossConfig(corrections=(of.DecoupledOptions(cap=1.2),))
    assert_close(weights(masked, [0.2, 0.1]), [0.0, math.exp(0.1)])


HALVED = {("correction", "batch_normalise"): {"mean_weight": 2.0}}


def test_batch_normalise() -> None:
    assert normaliser(logs(RHO), of.TokenTisOptions()) == pytest.approx((0.3 + 0.9 + 1.2 + 2 + 2) / 5)
    config = LossConfig(corrections=(of.TokenTisOptions(), of.BatchNormaliseOptions()))
    halved = weights(config, logs(RHO), UpdateStatistics(prepared=HALVED))
    assert_close(halved, [0.15, 0.45, 0.6, 1, 1])


def test_vcpo() -> None:
    config = LossConfig(corrections=(of.TokenTisOptions(), of.VcpoOptions()))
    batch = tokens([1.0] * 5, row=[0, 0, 1, 2, 3], rollout=[0.0] * 5)
    now = torch.tensor([0.5, -0.5, 0.0, 0.0, math.log(5)], dtype=torch.float64)
    frozen = frozen_tokens(now)
    assert update_facts([batch], [frozen], config).lr_scale == pytest.approx(0.755929, abs=1e-6)
    assert correction.vcpo_scale(torch.tensor(logs([1, 1, 1, 5])), of.VcpoOptions(scale="linear")) == pytest.approx(
        0.571429, abs=1e-6
    )


# ---------------------------------------------------------------------------------- worked examples: regularisers


def test_kl() -> None:
    new, ref = torch.tensor(-1.0, requires_grad=True), torch.tensor(-1.2)
    for name, value in (("k1", 0.2), ("k2", 0.02), ("k3", 0.018731), ("k3+", 0.018731)):
        assert regularisers.kl(new, ref, name).item() == pytest.approx(value, abs=1e-6)  # type: ignore[arg-type]
    k2_gradient = torch.autograd.grad(regularisers.kl(new, ref, "k2"), new)[0].item()
    assert torch.autograd.grad(regularisers.kl(new, ref, "k3+"), new)[0].item() == pytest.approx(k2_gradient)
    assert torch.autograd.grad(regularisers.kl(new, ref, "k3"), new)[0].item() != pytest.approx(k2_gradient)
    assert regularisers.kl(ref, ref).item() == 0.0


def test_self_distill() -> None:
    """Tokens without a teacher teach nothing; the others have the value of k1 and the gradient of k2."""
    leaf = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([-0.25, float("nan"), -2.0], dtype=torch.float64)
    term = regularisers.self_distill(leaf, teacher)
    assert_close(term, [-0.75, 0.0, 1.0])
    assert_close(torch.autograd.grad(term.sum(), leaf)[0], [-0.75, 0.0, 1.0])
    nobody = LossConfig(regularisers=(of.SelfDistillOptions(),), corrections=())
    assert policy_loss(scores([0.0] * 2), tokens([1.0, 1.0]), nobody).sums["self_teacher_kl"] == 0


def test_kl_first() -> None:
    new, base = torch.full((3,), -1.0), torch.tensor([-1.5, -1.5, -1.5])
    config = LossConfig(regularisers=(of.KlFirstOptions(coef=0.3, num_turns=2),), corrections=())
    given_scores = replace(scores([0.0] * 3), logprob_ref=base, logprob=new, logprob_old=new)
    output = policy_loss(given_scores, tokens([0.0] * 3, turn=[0, 1, 2], turn_index=[0, 1, 2]), config)
    of_turn = math.exp(-0.5) + 0.5 - 1
    assert output.sums["kl_first"] == pytest.approx(2 * of_turn, abs=1e-6)
    assert output.loss.item() == pytest.approx(0.3 * 2 * of_turn / 3, abs=1e-6)


def test_kl_convex() -> None:
    """A fourth of the KL to the base, three fourths of that to the old policy, each k3."""
    options = of.KlConvexOptions(coef=0.1, base_share=0.25)
    new, old, base = torch.tensor(-1.0), torch.tensor(-1.2), torch.tensor(-2.0)
    expected = 0.25 * (math.exp(-1.0) + 1.0 - 1) + 0.75 * (math.exp(-0.2) + 0.2 - 1)
    assert regularisers.kl_convex(new, old, base, options).item() == pytest.approx(expected, abs=1e-6)
    whole = replace(options, base_share=1.0)
    assert regularisers.kl_convex(new, old, base, whole).equal(regularisers.kl(new, base, "k3"))


def test_distill() -> None:
    new, teacher = torch.tensor([-1.0, -2.0], requires_grad=True), torch.tensor([-1.5, -0.5])
    found = regularisers.distill(new, teacher)
    assert found.tolist() == pytest.approx([0.5, -1.5]), (
        "k1: unbiased, and below 0 where the teacher likes a token more"
    )
    assert torch.autograd.grad(found.sum(), new)[0].tolist() == pytest.approx([0.5, -1.5])


@pytest.mark.parametrize("estimator", get_args(regularisers.KlEstimator))
@pytest.mark.parametrize("kind", ["kl", "kl_first", "kl_convex", "distill", "self_distill"])
def test_a_divergence_points_to_the_reference(kind: str, estimator: Any) -> None:
    """Over every token that could be sampled, by its probability: the gradient of the exact KL, and k3 close to it."""
    logits = torch.tensor([0.3, -0.2, 1.0, 0.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([1.0, 0.5, -1.0, 0.2], dtype=torch.float64).log_softmax(-1)
    logprobs = logits.log_softmax(-1)
    exact = torch.autograd.grad((logprobs.exp() * (logprobs - reference)).sum(), logits, retain_graph=True)[0]
    first = of.KlFirstOptions(num_turns=1, estimator=estimator)
    convex = of.KlConvexOptions(estimator=estimator, base_share=0.25)
    term = {
        "kl": lambda: regularisers.kl(logprobs, reference, estimator),
        "kl_first": lambda: regularisers.kl_first(logprobs, reference, torch.zeros(4, dtype=torch.long), first),
        "kl_convex": lambda: regularisers.kl_convex(logprobs, reference, reference, convex),
        "distill": lambda: regularisers.distill(logprobs, reference),
        "self_distill": lambda: regularisers.self_distill(logprobs, reference),
    }[kind]()
    expected = torch.autograd.grad((logprobs.exp().detach() * term).sum(), logits)[0]
    if estimator == "k3" and kind.startswith("kl"):
        assert torch.cosine_similarity(expected, exact, dim=0) > 0.9
    else:
        assert expected.tolist() == pytest.approx(exact.tolist(), abs=1e-12)
    value = (logprobs.exp() * term).sum().item()
    if estimator != "k2":
        assert value == pytest.approx((logprobs.exp() * (logprobs - reference)).sum().item(), abs=1e-12)


def test_the_policy_loss_is_weighed_beside_its_regularisers() -> None:
    distill = of.DistillOptions(teacher="t", coef=0.5)
    given_scores = scores([-1.0, -1.0], [-1.0, -1.0], logprob_ref=torch.tensor([-1.2, -1.4], dtype=torch.float64))
    batch = tokens([1.0, 1.0], rollout=[-1.0, -1.0])
    for weight in (1.0, 0.25, 0.0):
        config = LossConfig(weight=weight, regularisers=(distill,))
        assert policy_loss(given_scores, batch, config).loss.item() == pytest.approx(-weight + 0.5 * 0.3)
    with pytest.raises(ConfigError, match="leaves nothing to learn from"):
        LossConfig(weight=0.0)
    with pytest.raises(ConfigError, match="distill and kl"):
        LossConfig(regularisers=(distill, of.KlOptions()))


def test_kl_is_added_with_its_coefficient() -> None:
    config = LossConfig(regularisers=(of.KlOptions(coef=0.5, estimator="k1"),))
    given_scores = scores([-1.0, -1.0], [-1.0, -1.0], logprob_ref=torch.tensor([-1.2, -1.4], dtype=torch.float64))
    with_kl = policy_loss(given_scores, tokens([1.0, 1.0], rollout=[-1.0, -1.0]), config)
    assert with_kl.loss.item() == pytest.approx(-1.0 + 0.5 * 0.3)
    assert with_kl.sums["kl"] == pytest.approx(0.6)


def test_entropy_bonus() -> None:
    config = LossConfig(regularisers=(of.EntropyOptions(coef=0.1),))
    given_scores = scores([0.0, 0.0], entropy=[1.0, 3.0])
    assert policy_loss(given_scores, tokens([0.0, 0.0]), config).loss.item() == pytest.approx(-0.2)


def test_epo() -> None:
    options = of.EpoOptions(has_gradient=False)
    history = EntropyHistory().after({0: 1.0})
    given_scores = scores([0.0] * 4, entropy=[0.5, 1, 2.5, 1.9])
    batch = tokens([0.0] * 4)
    loss = policy_loss(given_scores, batch, LossConfig(regularisers=(options,)), UpdateStatistics(), history).loss
    assert loss.item() == pytest.approx(-0.00145)
    late = of.EpoOptions(has_gradient=False, from_turn=3)  # the update never comes to turn 3: no penalty
    loss = policy_loss(given_scores, batch, LossConfig(regularisers=(late,)), UpdateStatistics(), history).loss
    assert loss.item() == pytest.approx(-0.001475)
    for step, beta in (
        (0, 1),
        (37, 0.874563),
        (75, 0.827067),
        (76, 0.768632),
        (100, 0.294304),
        (150, 0.039830),
        (300, 0.039830),
    ):
        assert regularisers.epo_phase(step, 150) == pytest.approx(beta, abs=1e-6)


def test_epo_penalty_has_a_gradient_where_the_release_has_none() -> None:
    for has_gradient, expected in ((True, [0.0, 0.1]), (False, [0.0, 0.0])):
        entropy = torch.tensor([1.0, 2.5], requires_grad=True)
        penalty = regularisers.epo_penalty(entropy, torch.ones(2), of.EpoOptions(has_gradient=has_gradient))
        gradient = torch.autograd.grad((penalty + 0 * entropy).sum(), entropy)[0]
        assert_close(gradient, expected)


def test_turns_without_history_are_not_smoothed() -> None:
    history = EntropyHistory.from_dict(EntropyHistory().after({1: 1.0}).to_dict())
    config = LossConfig(regularisers=(of.EpoOptions(coef=1.0, alpha=1.0, has_gradient=False),))
    batch = tokens([0.0, 0.0], turn=[0, 1], turn_index=[0, 1])
    loss = policy_loss(scores([0.0, 0.0], entropy=[9.0, 9.0]), batch, config, UpdateStatistics(), history).loss
    assert loss.item() == pytest.approx(-9.0 + 0.5)


def test_llds() -> None:
    old, new = [-1, -0.5, -2, -1, -1, -1], [-1.2, -0.4, -2.3, -0.5, -1.2, -1.0]
    layout: dict[str, Any] = {"rollout": old, "row": [0, 0, 0, 1, 1, 1], "turn": [0, 0, 1, 2, 3, 3]}

    def total(gate: Any, advantage: float = 0.0) -> float:
        config = LossConfig(regularisers=(of.LldsOptions(coef=0.1, gate=gate),), num_updates=2)
        batch = tokens([advantage] * 6, **layout)
        output = policy_loss(scores(new, old), batch, config, UpdateStatistics(num_tokens=6))
        return output.sums["llds"]

    assert total("sequence") == pytest.approx(0.5)
    assert total("turn") == pytest.approx(0.7)
    assert total("turn", advantage=-1.0) == 0.0  # what failed may become less likely
    config = LossConfig(regularisers=(of.LldsOptions(coef=0.1, gate="sequence"),), num_updates=2)
    output = policy_loss(scores(new, old), tokens([0.0] * 6, **layout), config, UpdateStatistics(num_tokens=6))
    assert output.loss.item() == pytest.approx(0.1 * 0.083333, abs=1e-6)


# --------------------------------------------------------------------------------------------------- properties

KINDS = sorted(
    name for name, component in POLICY_LOSSES.items() if not component.compares_siblings and not component.prepare
)
"""Losses of a token's own advantage: not of whole episodes or of the whole update."""
numbers = st.floats(-2.0, 2.0, allow_nan=False)


@pytest.mark.parametrize("kind", KINDS)
@given(
    advantage=st.lists(numbers, min_size=4, max_size=4), logprob=st.lists(st.floats(-4, -0.1), min_size=4, max_size=4)
)
def test_on_policy_all_losses_have_the_gradient_of_reinforce(
    kind: Any, advantage: list[float], logprob: list[float]
) -> None:
    """Property (f): where pi_theta = pi_old every gate is open and the gradient is that of -A logp; OPMD halves it."""
    leaf = torch.tensor(logprob, dtype=torch.float64, requires_grad=True)
    batch = tokens([advantage[0]] * 2 + [advantage[1]] * 2, turn=[0, 0, 1, 1])
    given_scores = BatchLogprobs(logprob=leaf, logprob_old=leaf.detach(), entropy=torch.ones(4))
    config = LossConfig(kind=kind)
    facts = update_facts([batch], [frozen_tokens(leaf.detach())], config)
    loss, was_gated = gated_loss(given_scores, batch, config, facts)
    scale = 1 + of.OpmdOptions().tau if kind == "opmd" else 1
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), leaf)[0] * scale, -batch["advantage"])
    assert not was_gated.any()


CORRECTIONS: tuple[Any, ...] = (
    of.TokenTisOptions(),
    of.SequenceTisOptions(),
    of.IcepopOptions(),
    of.SequenceMisOptions(),
    of.SequenceMisOptions(weight="ratio"),
    of.GeometricOptions(),
    of.DivergenceRejectionOptions(),
    of.M2poOptions(),
    of.DecoupledOptions(),
    of.DecoupledOptions(level="turn", action="clamp"),
)


@pytest.mark.parametrize("options", CORRECTIONS, ids=lambda o: o.kind)
@given(logprob=st.lists(st.floats(-9, 0), min_size=1, max_size=6))
def test_corrections_are_one_without_a_gap(options: Any, logprob: list[float]) -> None:
    """Property (g), and no correction carries a gradient."""
    old = torch.tensor(logprob, dtype=torch.float64, requires_grad=True)
    batch = tokens([1.0] * len(logprob), rollout=logprob)
    config = LossConfig(corrections=(options,))
    facts = update_facts([batch], [frozen_tokens(old.detach())], config)
    weight = correction_weight(old, batch, config, facts)
    assert_close(weight, [1.0] * len(logprob))
    assert not weight.requires_grad


@given(st.lists(st.lists(st.floats(0.1, 3.0), min_size=1, max_size=5), min_size=1, max_size=4))
def test_prefix_minimum_against_its_definition(rows: list[list[float]]) -> None:
    ratio = torch.tensor([x for row in rows for x in row], dtype=torch.float64)
    index = torch.tensor([n for n, row in enumerate(rows) for _ in row])
    expected = [min(row[:at], default=1.0) for row in rows for at in range(len(row))]
    assert prefix_minimum(ratio, index).tolist() == expected


@given(
    st.lists(st.tuples(st.floats(0.1, 3.0), st.floats(-2, 2)), min_size=1, max_size=8),
    st.floats(0.2, 3.0),
)
def test_bapo_against_a_literal_search(pairs: list[tuple[float, float]], target: float) -> None:
    options = of.BapoOptions(target=target)

    def share(low: float, high: float) -> float:
        kept = [a * min(r, high) if a >= 0 else a * max(r, low) for r, a in pairs]
        negative = -sum(x for x in kept if x < 0)
        return sum(x for x in kept if x > 0) / (negative + 1e-8) if negative else math.inf

    low, high = 60, 120  # in hundredths
    while share(low / 100, high / 100) < target and low < 80:
        low += 5
    while share(low / 100, high / 100) < target and high < 200:
        high += 5
    ratio, advantage = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    assert policy.bapo_bounds(ratio, advantage, options) == pytest.approx((low / 100, high / 100))


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=8))
def test_sequence_losses_against_loops(rows: list[tuple[int, float, float]]) -> None:
    """GSPO's loss and sequence weights, one unit at a time."""
    rows = sorted(rows, key=lambda row: row[0])
    units = sorted({unit for unit, _, _ in rows})
    at = [units.index(unit) for unit, _, _ in rows]
    advantage_of = {n: 0.5 - n for n in range(len(units))}
    batch = tokens([advantage_of[n] for n in at], rollout=[-x for _, _, x in rows], turn=at, row=at)
    loss, _ = gated_loss(scores([x for _, x, _ in rows]), batch, LossConfig(kind="gspo"), UpdateStatistics())
    weight = correction_weight(
        torch.zeros(len(rows)).double(), batch, LossConfig(corrections=(of.SequenceTisOptions(),)), UpdateStatistics()
    )
    for n, token_loss, token_weight in zip(at, loss.tolist(), weight.tolist(), strict=True):
        mine = [row for row, unit in zip(rows, at, strict=True) if unit == n]
        s = math.exp(sum(x for _, x, _ in mine) / len(mine))
        a = advantage_of[n]
        assert token_loss == pytest.approx(max(-a * s, -a * min(max(s, 1 - 3e-4), 1 + 4e-4)), abs=1e-9)
        assert token_weight == pytest.approx(min(math.exp(sum(x for _, _, x in mine)), 2.0))


@given(st.lists(st.tuples(st.booleans(), numbers, numbers), min_size=2, max_size=8), numbers)
def test_masked_tokens_never_reach_the_loss(row: list[tuple[bool, float, float]], noise: float) -> None:
    """Property (c): what a masked token carries, and whether it was sampled at all, changes nothing."""

    def made(disturbance: float) -> Row:
        extra = [0.0 if kept else disturbance for kept, _, _ in row]
        return Row(
            token_ids=(3, *(4 + n for n in range(len(row)))),
            positions=1 + np.arange(len(row)),
            columns={
                "is_trained": np.array([kept for kept, _, _ in row]),
                "advantage": np.array([a + e for (_, a, _), e in zip(row, extra, strict=True)]),
                "logprob_rollout": np.array([x + e for (_, _, x), e in zip(row, extra, strict=True)]),
                "turn_index": np.arange(len(row)) // 3,
            },
        )

    for aggregation in ("token-mean", "seq-mean-token-mean"):
        (clean,) = build_batches([made(0.0)], aggregation=aggregation, unit="turn")
        (disturbed,) = build_batches([made(noise)], aggregation=aggregation, unit="turn")
        for name in ("row", "state", "target"):
            assert torch.equal(getattr(clean, name), getattr(disturbed, name)), name
        for name in ("advantage", "logprob_rollout", "loss_weight", "turn", "turn_index"):
            assert torch.equal(clean[name], disturbed[name]), name
        assert clean.num_tokens == sum(kept for kept, _, _ in row)


# -------------------------------------------------------------------------------------------------- composition


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "sapo", "dual_clip": 3.0}, "composition rule 6"),
        ({"kind": "sapo", "clip_high": 0.3}, "composition rule 6"),
        ({"kind": "sapo", "corrections": (of.DecoupledOptions(),)}, "composition rule 6"),
        ({"kind": "cispo", "dual_clip": 3.0}, "composition rule 6"),
        ({"mode": "bypass"}, "composition rule 3"),
        ({"corrections": (of.TokenTisOptions(), of.IcepopOptions())}, "composition rule 3"),
        ({"corrections": (of.BatchNormaliseOptions(),)}, "needs weights"),
        ({"corrections": (of.M2poOptions(), of.M2poOptions())}, "named twice"),
        ({"kind": "gspo", "aggregation": "token-mean"}, "seq-mean-token-mean"),
        ({"kind": "gspo", "dual_clip": 3.0}, "no dual clip"),
        ({"kind": "bapo", "clip_low": 0.2}, "settings are in loss.options"),
        ({"kind": "bapo", "options": of.SapoOptions()}, "comes with options of 'sapo'"),
        ({"kind": "minpro", "ratio_level": "turn"}, "ratios per token"),
        ({"dual_clip": 0.5}, "above 1"),
        ({"clip_low": 2.0}, "clip_low must be in"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LossConfig(**keys)


# -------------------------------------------------------------------------------------------------- whole batches


def one_batch(*samples: Row) -> Batch:
    (batch,) = build_batches(samples)
    return batch


def test_on_policy_gradient_is_that_of_reinforce() -> None:
    batch = one_batch(sample(2, 3, advantage=2.0), sample(1, 2, advantage=-1.0, trajectory=1))
    logprob = torch.full((5,), -1.0, requires_grad=True)
    output = policy_loss(
        BatchLogprobs(logprob=logprob, logprob_old=logprob.detach(), entropy=torch.zeros(5)), batch, LossConfig()
    )
    output.loss.backward()  # type: ignore[no-untyped-call]
    assert logprob.grad is not None
    torch.testing.assert_close(logprob.grad, -batch["advantage"] / 5)
    assert output.sums["clip_fraction"] == 0


def test_logprob_gap_is_reported() -> None:
    batch = one_batch(sample(1, 2, logprob=-1.0))
    output = policy_loss(scores([-1.5, -1.0], [-1.5, -1.0]), batch, LossConfig())
    assert output.maxima["logprob_gap_max"] == pytest.approx(0.5)
    assert output.sums["logprob_gap_mean"] == pytest.approx(0.5)


# ---------------------------------------------------------------------------------------------------- with a model


def gradients(model: Any, samples: list[Row], tokens_per_microbatch: int, aggregation: str) -> torch.Tensor:
    model.zero_grad()
    for batch in build_batches(samples, aggregation=aggregation, tokens_per_microbatch=tokens_per_microbatch):
        logprob, entropy = token_logprobs(model, batch, 1.0)
        scores = BatchLogprobs(logprob=logprob, logprob_old=logprob.detach(), entropy=entropy)
        policy_loss(scores, batch, LossConfig()).loss.backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_gradients_do_not_depend_on_micro_batches(small_model: Any, aggregation: str) -> None:
    model = small_model.double()
    rows = [sample(3, 2, 1.0), sample(5, 9, -0.5), sample(2, 1, 2.0), sample(4, 4, 0.3)]
    whole, split = gradients(model, rows, 10_000, aggregation), gradients(model, rows, 8, aggregation)
    # the advantages and weights are float32, so a term differs by rounding of its products alone
    torch.testing.assert_close(whole, split, atol=1e-9, rtol=1e-6)


def test_logprobs_are_those_of_a_full_forward_at_the_sampling_temperature(small_model: Any) -> None:
    batch = one_batch(sample(3, 4), sample(2, 7))
    logprob, entropy = token_logprobs(small_model, batch, 0.7)
    assert isinstance(batch.layout, PaddedRows)
    logits = small_model(input_ids=batch.layout.input_ids).logits / 0.7
    full = torch.log_softmax(logits, -1).flatten(0, 1)
    assert batch.target.tolist() == [
        token for row in (sample(3, 4), sample(2, 7)) for token in row.token_ids[-len(row.positions) :]
    ]
    for n, state in enumerate(batch.state.tolist()):
        distribution = full[state]
        assert logprob[n].item() == pytest.approx(distribution[batch.target[n]].item(), abs=1e-5)
        assert entropy[n].item() == pytest.approx(-(distribution.exp() * distribution).sum().item(), abs=1e-4)


def test_padding_and_neighbours_change_nothing(small_model: Any) -> None:
    alone = token_logprobs(small_model, one_batch(sample(3, 4)), 1.0)[0]
    beside = token_logprobs(small_model, one_batch(sample(3, 4), sample(6, 20)), 1.0)[0]
    torch.testing.assert_close(alone, beside[:4], atol=1e-5, rtol=0)
