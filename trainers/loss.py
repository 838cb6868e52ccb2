"""Losses: log-probabilities of sampled tokens, PPO-clip with clip-higher, and a KL estimate.

Every function works on the ``N`` sampled tokens of a micro-batch, flat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentgym.trainers.batch import TrainBatch
from agentgym.trainers.config import LossConfig
from agentgym.trainers.correction import LOG_RATIO_LIMIT, token_tis

SUMMED = ("entropy", "clip_fraction", "logprob_gap_mean", "tis_weight")
MAXIMA = ("logprob_gap_max",)


@dataclass(frozen=True, slots=True)
class LossOutput:
    """The micro-batch's share of the update's loss, and sums (not means) over its tokens for the metrics."""

    loss: Tensor
    sums: dict[str, float]
    maxima: dict[str, float]


def token_logprobs(model: Any, batch: TrainBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities ``[N]`` of the sampled tokens at the sampling temperature, and entropies ``[N]`` (detached).

    The head is applied at the positions that predict a sampled token alone: observations cost no vocabulary.
    """
    policy = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = policy.model(input_ids=batch.input_ids, use_cache=False).last_hidden_state
    logits = policy.lm_head(hidden[batch.row, batch.position - 1]).float() / temperature
    log_distribution = torch.log_softmax(logits, dim=-1)
    picked = log_distribution.gather(-1, batch.targets[:, None])[:, 0]
    with torch.no_grad():
        entropy = -(log_distribution.exp() * log_distribution).sum(-1)
    return picked, entropy


def ppo_clip(
    logprob: Tensor, logprob_old: Tensor, advantage: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """PPO's clipped objective as a loss per token ``[N]``, and where the clip bit ``[N]``.

    ``max(-A r, -A clip(r, 1 - low, 1 + high))`` with ``r = exp(logprob - logprob_old)``. A ``clip_high`` above
    ``clip_low`` is DAPO's clip-higher.

    Example:
        >>> log_ratio, advantage = torch.tensor([0.3, -0.4, 0.05, -0.1]), torch.tensor([1.0, 1.0, -1.0, -1.0])
        >>> [round(x, 4) for x in ppo_clip(log_ratio, torch.zeros(4), advantage, 0.2, 0.28)[0].tolist()]
        [-1.28, -0.6703, 1.0513, 0.9048]
    """
    ratio = (logprob - logprob_old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    plain = -advantage * ratio
    clipped = -advantage * ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(plain, clipped), clipped > plain


def kl_k3(logprob: Tensor, logprob_ref: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(policy || reference) per token: ``exp(d) - d - 1`` with ``d = ref - logprob``.

    Example:
        >>> round(kl_k3(torch.tensor(-1.0), torch.tensor(-1.2)).item(), 6)
        0.018731
    """
    difference = (logprob_ref - logprob).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (difference.exp() - difference - 1).clamp(-10, 10)


def policy_loss(
    logprob: Tensor,
    entropy: Tensor,
    logprob_old: Tensor,
    batch: TrainBatch,
    config: LossConfig,
    logprob_ref: Tensor | None = None,
) -> LossOutput:
    """The policy loss of a micro-batch; summed over the micro-batches of an update it is the update's loss."""
    per_token, was_clipped = ppo_clip(logprob, logprob_old, batch.advantage, config.clip_low, config.clip_high)
    correction = token_tis(logprob_old, batch.rollout_logprob, config.tis_cap)
    per_token = per_token * correction
    if logprob_ref is not None:
        per_token = per_token + config.kl_coef * kl_k3(logprob, logprob_ref)
    loss = (per_token * batch.weight).sum()
    gap = (logprob_old - batch.rollout_logprob).abs()
    sums = {
        "entropy": entropy.sum().item(),
        "clip_fraction": was_clipped.sum().item(),
        "logprob_gap_mean": gap.sum().item(),
        "tis_weight": correction.sum().item(),
    }
    if logprob_ref is not None:
        sums["kl"] = kl_k3(logprob.detach(), logprob_ref).sum().item()
    return LossOutput(loss, sums, {"logprob_gap_max": gap.max().item() if gap.numel() else 0.0})
