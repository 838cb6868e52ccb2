"""The loss of a micro-batch: log-probabilities, one policy loss, its corrections and the regularisers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from agentgym.trainers.data.batch import Batch
from agentgym.trainers.losses import correction, policy
from agentgym.trainers.losses.batch_columns import BatchColumns
from agentgym.trainers.losses.component import CORRECTIONS, POLICY_LOSSES, REGULARISERS, LossComponent
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import BatchLogprobs, UpdateStatistics
from agentgym.trainers.losses.ratios import sequence_log_ratio
from agentgym.trainers.losses.regularisers import EntropyHistory, epo_phase
from agentgym.trainers.losses.trial import checked_measure, checked_pair, checked_tokens
from agentgym.trainers.models.head import head_of, trunk_of
from agentgym.trainers.models.head_logprobs import VocabularyTerm, head_logprobs
from agentgym.trainers.types import CausalLM

SUMMED = ("entropy", "clip_fraction", "logprob_gap_mean", "correction_weight")
MAXIMA = ("logprob_gap_max",)


@dataclass(frozen=True, slots=True)
class LossOutput:
    """A micro-batch's part of the update's loss, and sums (not means) over its tokens for the metrics."""

    loss: Tensor
    sums: dict[str, float]
    maxima: dict[str, float]
    logprob: Tensor | None = None
    """``[N]`` log-probabilities under the trained policy, without gradient."""


def token_logprobs(
    model: CausalLM,
    batch: Batch,
    temperature: float,
    *,
    entropy_has_gradient: bool = False,
    terms: Sequence[VocabularyTerm] = (),
) -> tuple[Tensor, ...]:
    """Return log-probabilities ``[N]`` of the sampled tokens at the sampling temperature, entropies ``[N]``, and terms.

    The head is applied only at positions that predict a sampled token, so observations need no logits.

    Args:
        terms: functions of the log-probabilities of the whole vocabulary, see :func:`vocabulary_terms`.
    """
    states = batch.states(trunk_of(model))
    return head_logprobs(
        head_of(model), states, batch.target, temperature, entropy_has_gradient=entropy_has_gradient, terms=terms
    )


def vocabulary_terms(batch: Batch, config: LossConfig) -> dict[tuple[str, str], VocabularyTerm]:
    """Return the components' functions of the whole vocabulary, by family and name, over a few of the batch's tokens.

    Columns that need a model's scores are not known yet; all others may be read.
    """
    return {
        (component.family, component.name): partial(_term, component, options, batch)
        for component, options in config.parts()
        if component.of_vocabulary
    }


def _term(component: LossComponent, options: Any, batch: Batch, log_distribution: Tensor, index: Tensor) -> Tensor:
    columns = BatchColumns(batch, {})
    values = {
        name: log_distribution if name == "log_distribution" else columns[name][index]
        for name in component.read_of_vocabulary()
    }
    return checked_measure(component, values, options, len(index))


def policy_loss(
    scores: BatchLogprobs,
    batch: Batch,
    config: LossConfig,
    facts: UpdateStatistics | None = None,
    history: EntropyHistory | None = None,
) -> LossOutput:
    """Compute the loss of a micro-batch; the sum over an update's micro-batches is the update's loss.

    Args:
        scores: log-probabilities and entropies of the micro-batch's tokens.
        batch: the micro-batch.
        config: the loss's configuration.
        facts: facts about the whole update, if the configuration needs them.
        history: mean entropies of turns, including those of the current step.
    """
    facts = UpdateStatistics() if facts is None else facts
    per_token, was_gated = gated_loss(scores, batch, config, facts)
    weight = correction_weight(scores.logprob_old, batch, config, facts)
    share = facts.share_of(batch)
    if scores.choice is not None:
        per_token = scores.choice.apply(per_token, scores.logprob, scores.logprob_old)
        share = scores.choice.weight
    loss = config.weight * (per_token * weight * share).sum()
    sums = {
        "entropy": scores.entropy.detach().sum().item(),
        "clip_fraction": was_gated.sum().item(),
        "correction_weight": weight.sum().item(),
    }
    if scores.choice is not None:
        sums |= {f"changed/{kind}": count for kind, count in scores.choice.changed.items()}
    for name, term, share in _regularisers(scores, batch, config, facts, history):
        loss = loss + (term * share).sum()
        sums[name] = term.detach().sum().item()
    gap = (scores.logprob_old - batch["logprob_rollout"]).detach().abs()
    sums["logprob_gap_mean"] = gap.sum().item()
    maxima = {"logprob_gap_max": gap.max().item() if gap.numel() else 0.0}
    return LossOutput(loss, sums, maxima, scores.logprob.detach())


def gated_loss(
    scores: BatchLogprobs, batch: Batch, config: LossConfig, facts: UpdateStatistics
) -> tuple[Tensor, Tensor]:
    """Return the policy loss per token ``[N]`` before corrections, and where its gate acted ``[N]``."""
    component = POLICY_LOSSES[config.kind]
    low, high = config.clip
    further = {
        **facts.of(component, batch),
        "ratio": _ratio(scores, batch, config),
        "low": 1 - low,
        "high": 1 + high,
        "dual": config.dual,
        **scores.measured_by(component),
    }
    values = BatchColumns(batch, scores.columns, further)
    returned = component.call(**values.arguments(component, config.loss_options))
    return checked_pair(component.name, returned, len(scores.logprob))


def _ratio(scores: BatchLogprobs, batch: Batch, config: LossConfig) -> Tensor:
    if config.level == "token":
        return policy.log_ratio_per_token(scores.logprob, scores.logprob_old).exp()
    unit = batch["turn"] if config.level == "turn" else batch.row
    return sequence_log_ratio(scores.logprob, scores.logprob_old, unit).exp()


def correction_weight(logprob_old: Tensor, batch: Batch, config: LossConfig, facts: UpdateStatistics) -> Tensor:
    """Return the product of all corrections' weights and masks, detached, ``[N]``; ones without corrections."""
    rho = correction.log_rho(logprob_old, batch["logprob_rollout"])
    weight = torch.ones_like(rho)
    for options in config.corrections:
        weight = weight * correction.weight_of(rho, batch, options, facts.of(CORRECTIONS[options.kind], batch))
    return weight


def _regularisers(
    scores: BatchLogprobs,
    batch: Batch,
    config: LossConfig,
    facts: UpdateStatistics,
    history: EntropyHistory | None,
) -> list[tuple[str, Tensor, Tensor]]:
    """Return for each regulariser its name, its term per token, and the weight of the term per token."""
    terms = []
    for options in config.regularisers:
        component = REGULARISERS[options.kind]
        further: dict[str, Any] = {**facts.of(component, batch), **scores.measured_by(component)}
        if component.reads("historical"):
            known = EntropyHistory() if history is None else history
            step = known.num_steps - 1  # the history includes the current step; steps count from 0
            further["historical"] = _historical(batch["turn_index"], known).to(scores.entropy)
            phase = epo_phase(step, getattr(options, "phase_steps", 0))
            further["phase"] = phase if facts.last_turn >= getattr(options, "from_turn", 0) else 0.0
        if component.phase == "vocabulary":
            term = scores.terms[component.family, component.name]
        else:
            values = BatchColumns(batch, scores.columns, further)
            returned = component.call(**values.arguments(component, options))
            term = checked_tokens(component, returned, len(scores.logprob))
        coef = component.sign * (1.0 if component.is_scaled else getattr(options, "coef", 1.0))
        of_loss = component.averages_over == "loss"
        share = facts.share_of(batch) if of_loss else torch.full_like(term, 1 / facts.num_tokens)
        terms.append((component.metric or component.name, term, coef * share))
    return terms


def _historical(turn_index: Tensor, history: EntropyHistory) -> Tensor:
    means = {turn: history.mean(turn) for turn in set(turn_index.tolist())}
    return torch.tensor([float("nan") if (mean := means[turn]) is None else mean for turn in turn_index.tolist()])
