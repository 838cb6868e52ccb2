"""The loss of a micro-batch: log-probabilities, one policy loss, its corrections and the regularisers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentgym.trainers import correction
from agentgym.trainers.batch import TrainBatch
from agentgym.trainers.hidden import trunk_of
from agentgym.trainers.layout import hidden_states
from agentgym.trainers.losses import policy, regularisers
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import UpdateFacts
from agentgym.trainers.losses.ratios import sequence_log_ratio
from agentgym.trainers.losses.regularisers import EntropyHistory, epo_phase
from agentgym.trainers.losses.token_masks import TokenChoice
from agentgym.trainers.vocabulary import head_logprobs

SUMMED = ("entropy", "clip_fraction", "logprob_gap_mean", "correction_weight")
MAXIMA = ("logprob_gap_max",)


@dataclass(frozen=True, slots=True)
class LossOutput:
    """The micro-batch's share of the update's loss, and sums (not means) over its tokens for the metrics."""

    loss: Tensor
    sums: dict[str, float]
    maxima: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLogprobs:
    """What the models say about a micro-batch's sampled tokens, ``[N]`` each."""

    logprob: Tensor
    """Of the policy that is trained; carries the gradient."""
    logprob_old: Tensor
    """Of the policy that the ratio compares with."""
    entropy: Tensor
    """In nats; carries a gradient where a regulariser needs it."""
    logprob_ref: Tensor | None = None
    """Of the policy before RL, where a KL term needs it."""
    choice: TokenChoice | None = None
    """What token masks do, where there are some."""


def token_logprobs(
    model: Any, batch: TrainBatch, temperature: float, *, entropy_has_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probabilities ``[N]`` of the sampled tokens at the sampling temperature, and entropies ``[N]``.

    The head is applied at the positions that predict a sampled token alone: observations cost no vocabulary.
    """
    states = hidden_states(trunk_of(model), batch.layout)[batch.state]
    head = model.get_output_embeddings()
    return head_logprobs(head, states, batch.target, temperature, entropy_has_gradient=entropy_has_gradient)


def policy_loss(
    scores: BatchLogprobs,
    batch: TrainBatch,
    config: LossConfig,
    facts: UpdateFacts | None = None,
    history: EntropyHistory | None = None,
) -> LossOutput:
    """The loss of a micro-batch; summed over the micro-batches of an update it is the update's loss.

    Args:
        facts: about the whole update, where the configuration needs them.
        history: EPO's memory, with the present step.
    """
    facts = UpdateFacts() if facts is None else facts
    per_token, was_gated = gated_loss(scores, batch, config, facts)
    weight = correction_weight(scores.logprob_old, batch, config, facts)
    share = facts.share_of(batch)
    if scores.choice is not None:
        per_token = scores.choice.apply(per_token, scores.logprob, scores.logprob_old)
        share = scores.choice.weight
    loss = (per_token * weight * share).sum()
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
    gap = (scores.logprob_old - batch.rollout_logprob).detach().abs()
    sums["logprob_gap_mean"] = gap.sum().item()
    return LossOutput(loss, sums, {"logprob_gap_max": gap.max().item() if gap.numel() else 0.0})


def gated_loss(
    scores: BatchLogprobs, batch: TrainBatch, config: LossConfig, facts: UpdateFacts
) -> tuple[Tensor, Tensor]:
    """The policy loss per token ``[N]`` before corrections, and where its gate bit."""
    logprob, advantage = scores.logprob, batch.advantage
    ratio = _ratio(scores, batch, config)
    low, high = 1 - config.clip[0], 1 + config.clip[1]
    options = config.loss_options
    match config.kind:
        case "ppo_clip" | "dapo" | "gspo":
            return policy.ppo_clip(ratio, advantage, low, high, config.dual)
        case "cispo":
            return policy.cispo(logprob, ratio, advantage, low, high)
        case "sapo":
            return policy.sapo(ratio, advantage, options.tau_positive, options.tau_negative)
        case "minpro":
            ratio = policy.minpro_ratio(ratio, batch.row, cap_min_at_1=options.cap_min_at_1)
            if options.surrogate == "cispo":
                return policy.cispo(logprob, ratio, advantage, low, high)
            return policy.ppo_clip(ratio, advantage, low, high, config.dual)
        case "bapo":
            low, high = facts.ratio_bounds or (options.low, options.high)
            return policy.ppo_clip(ratio, advantage, low, high, config.dual)
        case "aepo_clip":
            return policy.aepo_clip(ratio, advantage, low, high, config.dual)
        case "reinforce":
            return policy.reinforce(logprob, ratio, advantage, options.cap)


def _ratio(scores: BatchLogprobs, batch: TrainBatch, config: LossConfig) -> Tensor:
    if config.level == "token":
        return policy.log_ratio_per_token(scores.logprob, scores.logprob_old).exp()
    unit = batch.turn if config.level == "turn" else batch.row
    return sequence_log_ratio(scores.logprob, scores.logprob_old, unit).exp()


def correction_weight(logprob_old: Tensor, batch: TrainBatch, config: LossConfig, facts: UpdateFacts) -> Tensor:
    """The product of all corrections' weights and masks, detached, ``[N]``; ones where there are none."""
    rho = correction.log_rho(logprob_old, batch.rollout_logprob)
    weight = torch.ones_like(rho)
    for options in config.corrections:
        weight = weight * correction.weight_of(rho, batch, options)
    return weight * facts.kept_of(batch) / facts.mean_weight


def _regularisers(
    scores: BatchLogprobs,
    batch: TrainBatch,
    config: LossConfig,
    facts: UpdateFacts,
    history: EntropyHistory | None,
) -> list[tuple[str, Tensor, Tensor]]:
    """Return of each regulariser its name, its term per token and the term's share in the loss."""
    terms = []
    share = facts.share_of(batch)
    for options in config.regularisers:
        match options.kind:
            case "kl":
                assert scores.logprob_ref is not None
                divergence = regularisers.kl(scores.logprob, scores.logprob_ref, options.estimator)
                terms.append(("kl", divergence, options.coef * share))
            case "entropy":
                terms.append(("entropy_bonus", scores.entropy, -options.coef * share))
            case "epo":
                known = EntropyHistory() if history is None else history
                historical = _historical(batch.turn_index, known).to(scores.entropy)
                step = known.num_steps - 1  # the history holds the present step, which counts from 0
                phase = epo_phase(step, options.phase_steps) if facts.last_turn >= options.from_turn else 0.0
                terms.append(("epo", regularisers.epo(scores.entropy, historical, options, phase), share))
            case "llds":
                units = (batch.row, batch.turn)
                fall = regularisers.llds(scores.logprob, scores.logprob_old, batch.advantage, *units, options)
                terms.append(("llds", fall, torch.full_like(fall, options.coef / facts.num_tokens)))
    return terms


def _historical(turn_index: Tensor, history: EntropyHistory) -> Tensor:
    means = {turn: history.mean(turn) for turn in set(turn_index.tolist())}
    return torch.tensor([float("nan") if (mean := means[turn]) is None else mean for turn in turn_index.tolist()])
