"""Token masks: mark tokens of an update that train, are left out or are penalised, by entropy or covariance.

Tokens are chosen among all trained tokens of an update, before its gradient, from log-probabilities of the policy that
is about to be trained. Released codes choose within a micro-batch. Here the choice does not depend on the split into
micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentgym.errors import blamed
from agentgym.trainers.data.batch import Batch
from agentgym.trainers.data.plan import token_weights
from agentgym.trainers.losses.component import TOKEN_MASKS, LossComponent
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import BatchLogprobs, UpdateTokens
from agentgym.trainers.losses.options import ClipCovOptions, ForkingTokensOptions, KlCovOptions
from agentgym.trainers.losses.ratios import clamped
from agentgym.trainers.losses.trial import checked_marks


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChoice:
    """The effect of token masks on a micro-batch's ``N`` tokens."""

    weight: Tensor
    """``[N]`` weight of each token in the policy loss."""
    is_kept: Tensor
    """``[N]`` False for tokens that a mask leaves out."""
    penalty: Tensor
    """``[N]`` coefficient of the tokens that a mask penalises, 0 for the others."""
    changed: dict[str, float]
    """Number of tokens that each mask acts on."""

    def apply(self, per_token: Tensor, logprob: Tensor, logprob_old: Tensor) -> Tensor:
        """Apply the masks to a policy loss per token, ``[N]``."""
        return per_token * self.is_kept + self.penalty * clamped(logprob - logprob_old).abs()


def forking_tokens(entropy: Tensor, options: ForkingTokensOptions) -> Tensor:
    """Mark the tokens whose entropy is among the ``share`` highest of the update, ``[M]``.

    As in the released code, the policy loss averages over these tokens only. Regularisers use all tokens.

    Source: "Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning for LLM
    Reasoning" (``get_global_entropy_top_mask``).

    Example:
        >>> entropy = torch.tensor([0.1, 2.0, 0.3, 0.2, 1.5, 0.0])
        >>> forking_tokens(entropy, ForkingTokensOptions()).tolist()
        [False, True, False, False, True, False]
    """
    num_kept = max(1, int(len(entropy) * options.share + 0.9999))  # rounded up as in the released code
    return _mask_of(entropy.topk(num_kept).indices, len(entropy))


def covariance_of(logprob: Tensor, advantage: Tensor) -> Tensor:
    """Return each token's contribution to the covariance of advantage and log-probability, ``[M]``.

    The mean of the contributions is the covariance. Entropy falls where it is high, as "The Entropy Mechanism of
    Reinforcement Learning for Reasoning Language Models" shows.

    Example:
        >>> covariance_of(torch.tensor([-1.0, -3.0]), torch.tensor([1.0, -1.0])).tolist()
        [1.0, 1.0]
    """
    return (advantage - advantage.mean()) * (logprob - logprob.mean())


def clip_cov(covariance: Tensor, was_gated: Tensor, options: ClipCovOptions, seed: int) -> Tensor:
    """Mark the tokens that Clip-Cov leaves out: a few random ones among those with a covariance in the band, ``[M]``.

    Tokens that the loss's clip has already gated are not candidates. The loss's denominators do not change.

    Source: "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models"; verl
    ``compute_policy_loss_clip_cov``.

    Example:
        >>> cov = torch.tensor([0.5, 2.0, 9.0, 3.0])
        >>> clip_cov(cov, torch.tensor([False, False, False, True]), ClipCovOptions(), seed=0).tolist()
        [False, True, False, False]
    """
    candidates = ((covariance > options.low) & (covariance < options.high) & ~was_gated).nonzero()[:, 0]
    num_left_out = max(1, int(len(covariance) * options.share))
    order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(seed))
    return _mask_of(candidates[order[:num_left_out].to(candidates.device)], len(covariance))


def kl_cov(covariance: Tensor, options: KlCovOptions) -> Tensor:
    """Mark the tokens that KL-Cov penalises by ``coef |log pi_theta / pi_old|``: those of highest covariance, ``[M]``.

    The released code uses it without a clip: set ``clip_low=1`` and a large ``clip_high`` to reproduce its loss.

    Source: "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models"; verl
    ``compute_policy_loss_kl_cov``.

    Example:
        >>> kl_cov(torch.tensor([0.5, 2.0, 9.0, 3.0]), KlCovOptions()).tolist()
        [False, False, True, False]
    """
    num_penalised = max(1, int(len(covariance) * options.share))
    return _mask_of(covariance.topk(num_penalised).indices, len(covariance))


def choose_tokens(
    batches: Sequence[Batch],
    frozen: Sequence[BatchLogprobs],
    was_gated: Sequence[Tensor],
    shares: Sequence[Tensor],
    config: LossConfig,
    seed: int,
) -> list[TokenChoice]:
    """Apply the configured masks to an update, and return their effect on each micro-batch.

    Args:
        batches: the micro-batches of the update.
        frozen: log-probabilities and entropies of each micro-batch.
        was_gated: per micro-batch, the tokens on which the loss's gate acted.
        shares: per micro-batch, the weight of each token in the loss; 0 if a correction removed it.
        config: the loss's configuration.
        seed: seed of Clip-Cov's random choice.
    """
    update = UpdateTokens(batches, frozen)
    weight = update.join(shares)
    is_kept, penalty = torch.ones_like(weight, dtype=torch.bool), torch.zeros_like(weight)
    update.add("covariance", covariance_of(update["logprob"], update["advantage"]))
    update.add("was_gated", update.join(was_gated))
    update.add("seed", seed)
    acted: dict[str, Tensor] = {}
    for options in config.token_masks if len(update) else ():
        component = TOKEN_MASKS[options.kind]
        marked = checked_marks(component, _marked(component, update, options), len(update))
        acted[component.name] = ~marked if component.effect == "keep" else marked
        if component.effect == "keep":
            unit = update.join([batch["unit"] for batch in batches])
            weight = _weights_within(marked & (weight > 0), unit, config, weight)
        elif component.effect == "leave_out":
            is_kept = is_kept & ~marked
        else:
            penalty = penalty + getattr(options, "coef", 1.0) * marked.to(penalty)
    counts = {kind: [float(part.sum()) for part in update.split(mask)] for kind, mask in acted.items()}
    parts = zip(update.split(weight), update.split(is_kept), update.split(penalty), strict=True)
    return [
        TokenChoice(
            weight=of_batch[0],
            is_kept=of_batch[1],
            penalty=of_batch[2],
            changed={kind: of_kind[index] for kind, of_kind in counts.items()},
        )
        for index, of_batch in enumerate(parts)
    ]


def _marked(component: LossComponent, update: UpdateTokens, options: Any) -> object:
    with blamed(f"token mask {component.name!r}") if component.is_own else nullcontext():
        given = {name: update[name] for name in component.read_by_function()}
        returned: object = component.call(**component.arguments(given, options))
    return returned


def _weights_within(is_chosen: Tensor, unit: Tensor, config: LossConfig, like: Tensor) -> Tensor:
    kept = token_weights(unit[is_chosen].cpu().numpy(), config.mean, config.norm_length)
    weight = torch.zeros_like(like)
    weight[is_chosen] = torch.tensor(kept, dtype=like.dtype, device=like.device)
    return weight


def _mask_of(indices: Tensor, num_tokens: int) -> Tensor:
    mask = torch.zeros(num_tokens, dtype=torch.bool, device=indices.device)
    mask[indices] = True
    return mask
