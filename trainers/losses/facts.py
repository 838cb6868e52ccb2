"""Numbers about a whole update that must be known before its first gradient.

They are computed once, from log-probabilities without gradient. Gradients then do not depend on how the update is split
into micro-batches, and ranks that share an update have one place to reduce the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentgym.trainers.data.batch import TrainBatch
from agentgym.trainers.data.plan import token_weights
from agentgym.trainers.losses.component import CORRECTIONS
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.correction import log_rho, m2po_mask, vcpo_scale, weight_of
from agentgym.trainers.losses.options import BapoOptions, RefuelOptions
from agentgym.trainers.losses.policy import bapo_bounds, log_ratio_per_token
from agentgym.trainers.losses.ratios import first_of_unit, sum_per_unit
from agentgym.trainers.losses.siblings import refuel_terms

SMALLEST_MEAN = 1e-8
"""Mean weight below which ``batch_normalise`` leaves the weights alone, as verl does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStatistics:
    """Numbers about one update, over its ``M`` trained tokens. The defaults have no effect."""

    num_tokens: int = 1
    """Number of trained tokens of the update, LLDS's divisor."""
    ratio_bounds: tuple[float, float] | None = None
    """BAPO's bounds of the ratio."""
    is_in_m2po: Tensor | None = None
    """``[M]`` tokens that M2PO keeps."""
    share: Tensor | None = None
    """``[M]`` weight of each token in the loss, if corrections remove tokens from its denominators."""
    mean_weight: float = 1.0
    """Mean of the corrections' weights, by which ``batch_normalise`` divides."""
    lr_scale: float = 1.0
    """VCPO's factor of the learning rate."""
    regression: tuple[Tensor, Tensor] | None = None
    """``[M]`` each: REFUEL's factors of the gradient of the tokens' log-probabilities, and the tokens' parts of its
    loss."""
    last_turn: int = 0
    """Highest turn index of the update; EPO acts only from a certain turn on."""

    def share_of(self, batch: TrainBatch) -> Tensor:
        """Return the weights of a micro-batch's tokens in the update's loss, ``[N]``."""
        return batch.weight if self.share is None else self.share[batch.first : batch.first + batch.num_tokens]

    def regression_of(self, batch: TrainBatch) -> tuple[Tensor, Tensor]:
        """Return REFUEL's factors and losses of a micro-batch's tokens, ``[N]`` each; zeros without sibling turns."""
        if self.regression is None:
            return torch.zeros_like(batch.advantage), torch.zeros_like(batch.advantage)
        factor, value = self.regression
        here = slice(batch.first, batch.first + batch.num_tokens)
        return factor[here], value[here]

    def kept_of(self, batch: TrainBatch) -> Tensor:
        """Mark the tokens of a micro-batch that M2PO keeps, ``[N]``."""
        if self.is_in_m2po is None:
            return torch.ones_like(batch.row, dtype=torch.bool)
        return self.is_in_m2po[batch.first : batch.first + batch.num_tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenTokens:
    """Scores of a micro-batch's tokens before an update, without gradient, ``[N]`` each."""

    logprob: Tensor
    """Log-probability under the policy that is about to be trained."""
    logprob_old: Tensor
    """Log-probability under the old policy of the ratio."""
    entropy: Tensor

    def to(self, device: torch.device | str) -> FrozenTokens:
        """Return the scores on a device."""
        return FrozenTokens(
            logprob=self.logprob.to(device), logprob_old=self.logprob_old.to(device), entropy=self.entropy.to(device)
        )


def update_facts(batches: Sequence[TrainBatch], frozen: Sequence[FrozenTokens], config: LossConfig) -> UpdateStatistics:
    """Compute the facts about an update.

    Args:
        batches: the micro-batches of the update.
        frozen: scores of each micro-batch; empty if no component needs the whole update.
        config: the loss's configuration.
    """
    facts = UpdateStatistics(
        num_tokens=max(1, sum(batch.num_tokens for batch in batches)),
        last_turn=max((int(batch.turn_index.max()) for batch in batches if batch.num_tokens), default=0),
    )
    if not frozen or not sum(batch.num_tokens for batch in batches):
        return facts
    old = torch.cat([f.logprob_old for f in frozen])
    if options := config.correction("m2po"):
        rho = log_rho(old, torch.cat([batch.rollout_logprob for batch in batches]))
        facts = replace(facts, is_in_m2po=m2po_mask(rho, options))
    if config.shrinks_denominators:
        facts = replace(facts, share=_shares(batches, frozen, config, facts))
    if config.correction("batch_normalise"):
        facts = replace(facts, mean_weight=_mean_weight(batches, frozen, config))
    if options := config.correction("vcpo"):
        pairs = zip(batches, frozen, strict=True)
        facts = replace(facts, lr_scale=vcpo_scale(torch.cat([_row_log_weights(*pair) for pair in pairs]), options))
    if config.component.reads("regression"):
        facts = replace(facts, regression=_regression(batches, frozen, config))
    if config.component.reads("ratio_bounds"):
        advantage = torch.cat([batch.advantage for batch in batches])
        ratio = log_ratio_per_token(torch.cat([f.logprob for f in frozen]), old).exp()
        options = config.loss_options if isinstance(config.loss_options, BapoOptions) else BapoOptions()
        facts = replace(facts, ratio_bounds=bapo_bounds(ratio, advantage, options))
    return facts


def _shares(
    batches: Sequence[TrainBatch], frozen: Sequence[FrozenTokens], config: LossConfig, facts: UpdateStatistics
) -> Tensor:
    """Return the weights of :func:`token_weights` over the tokens that are not rejected, and 0 for the others."""
    pieces = []
    for batch, tokens in zip(batches, frozen, strict=True):
        rho = log_rho(tokens.logprob_old, batch.rollout_logprob)
        is_kept = torch.ones_like(batch.row, dtype=torch.bool)
        for options in config.corrections:
            if getattr(options, "denominator", "all") == "kept":
                is_kept &= weight_of(rho, batch, options, facts.kept_of(batch)) > 0
        pieces.append(is_kept)
    is_kept, unit = torch.cat(pieces), torch.cat([batch.unit for batch in batches])
    weights = token_weights(unit[is_kept].cpu().numpy(), config.mean, config.norm_length)
    shares = torch.zeros_like(torch.cat([batch.weight for batch in batches]))
    shares[is_kept] = torch.tensor(weights, dtype=shares.dtype, device=shares.device)
    return shares


def _mean_weight(batches: Sequence[TrainBatch], frozen: Sequence[FrozenTokens], config: LossConfig) -> float:
    """Return the mean weight of tokens, or of sequences if weights are per sequence; rejected ones do not count."""
    options = next(part for part in config.corrections if CORRECTIONS[part.kind].weighs)
    pieces = []
    for batch, tokens in zip(batches, frozen, strict=True):
        weight = weight_of(log_rho(tokens.logprob_old, batch.rollout_logprob), batch, options)
        if (level := getattr(options, "level", "token")) != "token":
            weight = weight[first_of_unit(batch.turn if level == "turn" else batch.row)]
        pieces.append(weight[weight > 0])
    mean = torch.cat(pieces).double().mean().item()
    return mean if mean > SMALLEST_MEAN else 1.0


def _row_log_weights(batch: TrainBatch, frozen: FrozenTokens) -> Tensor:
    """Return for each row with trained tokens the sum of its log-ratios between policy and engine."""
    return sum_per_unit(frozen.logprob - batch.rollout_logprob, batch.row)[first_of_unit(batch.row)]


def _regression(
    batches: Sequence[TrainBatch], frozen: Sequence[FrozenTokens], config: LossConfig
) -> tuple[Tensor, Tensor] | None:
    """Return REFUEL's factors and losses of all tokens, divided by their weights; None without sibling turns."""
    if all(batch.siblings is None for batch in batches):
        return None
    state = torch.cat([torch.full_like(b.row, -1) if b.siblings is None else b.siblings for b in batches])
    firsts = [0, *(int(batch.turn.max()) + 1 for batch in batches if batch.num_tokens)]
    starts = iter(torch.tensor(firsts).cumsum(0).tolist())
    turn = torch.cat([batch.turn + next(starts) for batch in batches if batch.num_tokens])
    change = torch.cat([tokens.logprob - tokens.logprob_old for tokens in frozen])
    advantage, weight = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("advantage", "weight"))
    options = config.loss_options if isinstance(config.loss_options, RefuelOptions) else RefuelOptions()
    factor, value = refuel_terms(change, advantage, turn, state, options)
    return factor / weight, value / weight
