"""The worked example of the whole pipeline: gated rewards, GiGPO, GSPO over turns, truncated importance sampling."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

from agentgym.credit.compose import CreditConfig, credit_turns
from agentgym.credit.shapers.gating import GraOptions
from agentgym.credit.table import TurnTable
from agentgym.trainers.data.batch import Batch, build_batches
from agentgym.trainers.data.plan import Unit
from agentgym.trainers.data.row import Row
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import BatchLogprobs, UpdateStatistics
from agentgym.trainers.losses.loss import correction_weight, gated_loss, policy_loss
from agentgym.trainers.losses.options import TokenTisOptions

OLD = (((-1, -0.5), (-2.0,)), ((-0.7, -0.7), (-1.2,)))
NEW = (((-0.9, -0.45), (-1.7,)), ((-0.8, -0.9), (-1.2,)))
ROLLOUT = (((-1.1, -0.5), (-2.8,)), ((-0.7, -0.7), (-1.0,)))
CREDIT = CreditConfig(
    estimator="gigpo", norm="mean_norm", gamma=0.95, step_weight=1.0, shapers=(GraOptions(thresholds=(0.5,)),)
)
LOSS = LossConfig(kind="gspo", clip_low=0.2, clip_high=0.2, corrections=(TokenTisOptions(cap=2.0),))


def table() -> TurnTable:
    return TurnTable.from_lists(
        rewards=[[0, 0], [0, 0]], states=[["s0", "s1"], ["s0", "s0"]], group_of_trajectory=[0, 0]
    ).with_parts(outcome=("outcome", [[0, 1], [0, 0]]), step=("process", [[0.1, 0.1], [0.1, -0.1]]))


def batch_of(advantages: list[float], aggregation: str, unit: Unit) -> Batch:
    """One row per trajectory: a prompt token, then its turns with an observation token between them."""
    samples = []
    for trajectory, turns in enumerate(ROLLOUT):
        mask, advantage, logprobs, turn_of = [0], [0.0], [0.0], [-1]
        for index, logprob in enumerate(turns):
            mask += [1] * len(logprob) + [0]
            advantage += [advantages[2 * trajectory + index]] * len(logprob) + [0.0]
            logprobs += [*logprob, 0.0]
            turn_of += [index] * len(logprob) + [-1]
        samples.append(
            Row.of(
                range(1, len(mask) + 1),
                mask,
                {"advantage": advantage, "logprob_rollout": logprobs, "turn_index": turn_of},
                trajectory=trajectory,
            )
        )
    (batch,) = build_batches(samples, aggregation=aggregation, unit=unit)
    return batch


def flat(values: tuple[tuple[tuple[float, ...], ...], ...]) -> torch.Tensor:
    return torch.tensor([x for turns in values for x in chain(*turns)])


@pytest.mark.parametrize(
    ("aggregation", "unit", "expected"),
    [("seq-mean-token-mean", "turn", -0.334535), ("token-mean", "trajectory", -0.340001)],
)
def test_gated_rewards_to_gigpo_to_turn_level_gspo_to_token_tis(aggregation: str, unit: Unit, expected: float) -> None:
    credit = credit_turns(table(), CREDIT)
    assert credit.table.reward.tolist() == pytest.approx([0.1, 1.1, 0, 0])
    assert credit.return_to_go.tolist() == pytest.approx([1.145, 1.1, 0, 0])
    assert credit.advantage.tolist() == pytest.approx([1.363333, 0.6, -0.981667, -0.981667], abs=1e-5)

    batch = batch_of(credit.advantage.tolist(), aggregation, unit)
    scores = BatchLogprobs(logprob=flat(NEW), logprob_old=flat(OLD), entropy=torch.zeros(6))
    turn_losses, _ = gated_loss(scores, batch, LOSS, UpdateStatistics())
    expected_losses = [-1.469515, -1.469515, -0.72, 0.844928, 0.844928, 0.981667]
    assert turn_losses.tolist() == pytest.approx(expected_losses, abs=1e-5)
    weights = correction_weight(scores.logprob_old, batch, LOSS, UpdateStatistics())
    assert weights.tolist() == pytest.approx([1.105171, 1, 2, 1, 1, 0.818731], abs=1e-5)
    token_losses = [-1.624066, -1.469515, -1.44, 0.844928, 0.844928, 0.803721]
    assert (turn_losses * weights).tolist() == pytest.approx(token_losses, abs=1e-5)
    assert policy_loss(scores, batch, LOSS).loss.item() == pytest.approx(expected, abs=1e-5)
