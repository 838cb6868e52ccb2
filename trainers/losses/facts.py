"""What has to be known about a whole update before its first gradient: a few numbers, over all its trained tokens.

They are computed here once, from log-probabilities without gradient, so that gradients do not depend on how the update
is split into micro-batches, and so that machines that share an update have one place to reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentgym.trainers.batch import TrainBatch
from agentgym.trainers.correction import log_rho, m2po_limit, vcpo_scale
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.policy import bapo_bounds, log_ratio_per_token
from agentgym.trainers.losses.ratios import sum_per_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFacts:
    """Numbers about one update; the defaults change nothing."""

    num_tokens: int = 1
    """Trained tokens of the update: LLDS's divisor."""
    ratio_bounds: tuple[float, float] | None = None
    """BAPO's bounds."""
    m2po_limit: float = float("inf")
    """Squared log-ratio from which M2PO leaves a token out."""
    mean_weight: float = 1.0
    """Mean correction weight, which ``batch_normalise`` divides by."""
    lr_scale: float = 1.0
    """VCPO's factor of the learning rate."""
    last_turn: int = 0
    """Highest turn index of the update: EPO acts from a turn on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenTokens:
    """What a micro-batch's tokens have before an update's step, without gradient, ``[N]`` each."""

    logprob: Tensor
    """Of the policy that is about to be trained."""
    logprob_old: Tensor
    """Of the policy that the ratio compares with."""
    entropy: Tensor
    weight: Tensor
    """The corrections' weights, those of the whole update left out."""


def update_facts(batches: Sequence[TrainBatch], frozen: Sequence[FrozenTokens], config: LossConfig) -> UpdateFacts:
    """The facts about an update.

    Args:
        frozen: per micro-batch; empty if the configuration needs nothing of the whole update.
    """
    facts = UpdateFacts(
        num_tokens=max(1, sum(batch.num_tokens for batch in batches)),
        last_turn=max((int(batch.turn_index.max()) for batch in batches if batch.num_tokens), default=0),
    )
    if not frozen or not sum(batch.num_tokens for batch in batches):
        return facts
    logprob, old = torch.cat([f.logprob for f in frozen]), torch.cat([f.logprob_old for f in frozen])
    rho = log_rho(old, torch.cat([batch.rollout_logprob for batch in batches]))
    if options := config.correction("m2po"):
        facts = replace(facts, m2po_limit=m2po_limit(rho, options))
    if config.correction("batch_normalise"):
        weight = torch.cat([f.weight for f in frozen]) * (rho.double().square() < facts.m2po_limit)
        facts = replace(facts, mean_weight=float(weight.mean()) or 1.0)
    if options := config.correction("vcpo"):
        pairs = zip(batches, frozen, strict=True)
        facts = replace(facts, lr_scale=vcpo_scale(torch.cat([_row_log_weights(*pair) for pair in pairs]), options))
    if config.kind == "bapo":
        advantage = torch.cat([batch.advantage for batch in batches])
        ratio = log_ratio_per_token(logprob, old).exp()
        facts = replace(facts, ratio_bounds=bapo_bounds(ratio, advantage, config.loss_options))
    return facts


def _row_log_weights(batch: TrainBatch, frozen: FrozenTokens) -> Tensor:
    """Of each row with trained tokens, the summed log-ratio of the policy to the engine's."""
    total = sum_per_unit(frozen.logprob - batch.rollout_logprob, batch.row)
    first = torch.ones_like(batch.row, dtype=torch.bool)
    first[1:] = batch.row[1:] != batch.row[:-1]
    return total[first]
