"""Token masks: choose tokens of an update that train, are left out or are penalised, by entropy or covariance.

Tokens are chosen among all trained tokens of an update, before its gradient, from log-probabilities of the policy that
is about to be trained. Released codes choose within a micro-batch. Here the choice does not depend on the split into
micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym.trainers.data.batch import TrainBatch
from agentgym.trainers.data.plan import token_weights
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import FrozenTokens
from agentgym.trainers.losses.options import ClipCovOptions, ForkingTokensOptions, KlCovOptions
from agentgym.trainers.losses.ratios import clamped


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChoice:
    """The effect of token masks on a micro-batch's ``N`` tokens."""

    weight: Tensor
    """``[N]`` weight of each token in the policy loss."""
    is_kept: Tensor
    """``[N]`` False for tokens that ``clip_cov`` leaves out."""
    penalty: Tensor
    """``[N]`` coefficient of ``kl_cov``, 0 for most tokens."""
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


def covariance(logprob: Tensor, advantage: Tensor) -> Tensor:
    """Return each token's contribution to the covariance of advantage and log-probability, ``[M]``.

    The mean of the contributions is the covariance. Entropy falls where it is high, as "The Entropy Mechanism of
    Reinforcement Learning for Reasoning Language Models" shows.

    Example:
        >>> covariance(torch.tensor([-1.0, -3.0]), torch.tensor([1.0, -1.0])).tolist()
        [1.0, 1.0]
    """
    return (advantage - advantage.mean()) * (logprob - logprob.mean())


def clip_cov(cov: Tensor, was_gated: Tensor, options: ClipCovOptions, seed: int) -> Tensor:
    """Mark the tokens that Clip-Cov leaves out: a few random ones among those with a covariance in the band, ``[M]``.

    Tokens that the loss's clip has already gated are not candidates. The loss's denominators do not change.

    Source: "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models"; verl
    ``compute_policy_loss_clip_cov``.

    Example:
        >>> cov = torch.tensor([0.5, 2.0, 9.0, 3.0])
        >>> clip_cov(cov, torch.tensor([False, False, False, True]), ClipCovOptions(), seed=0).tolist()
        [False, True, False, False]
    """
    candidates = ((cov > options.low) & (cov < options.high) & ~was_gated).nonzero()[:, 0]
    num_left_out = max(1, int(len(cov) * options.share))
    order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(seed))
    return _mask_of(candidates[order[:num_left_out].to(candidates.device)], len(cov))


def kl_cov(cov: Tensor, options: KlCovOptions) -> Tensor:
    """Mark the tokens that KL-Cov penalises by ``coef |log pi_theta / pi_old|``: those of highest covariance, ``[M]``.

    The released code uses it without a clip: set ``clip_low=1`` and a large ``clip_high`` to reproduce its loss.

    Source: "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models"; verl
    ``compute_policy_loss_kl_cov``.

    Example:
        >>> kl_cov(torch.tensor([0.5, 2.0, 9.0, 3.0]), KlCovOptions()).tolist()
        [False, False, True, False]
    """
    num_penalised = max(1, int(len(cov) * options.share))
    return _mask_of(cov.topk(num_penalised).indices, len(cov))


def choose_tokens(
    batches: Sequence[TrainBatch],
    frozen: Sequence[FrozenTokens],
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
    update = _Joined(batches)
    weight = update.join(shares)
    is_kept, penalty = torch.ones_like(weight, dtype=torch.bool), torch.zeros_like(weight)
    advantage = update.join([batch.advantage for batch in batches])
    cov = covariance(update.join([tokens.logprob for tokens in frozen]), advantage)
    acted: dict[str, Tensor] = {}
    for options in config.token_masks if len(cov) else ():
        match options:
            case ForkingTokensOptions():
                is_fork = forking_tokens(update.join([tokens.entropy for tokens in frozen]), options)
                unit = update.join([batch.unit for batch in batches])
                weight = _weights_within(is_fork & (weight > 0), unit, config, weight)
                acted[options.kind] = ~is_fork
            case ClipCovOptions():
                acted[options.kind] = clip_cov(cov, update.join(was_gated), options, seed)
                is_kept = ~acted[options.kind]
            case KlCovOptions():
                acted[options.kind] = kl_cov(cov, options)
                penalty = options.coef * acted[options.kind].to(penalty)
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


class _Joined:
    """The tokens of an update's micro-batches in the order of its samples, so that random choices ignore the split."""

    def __init__(self, batches: Sequence[TrainBatch]) -> None:
        self._sizes = [batch.num_tokens for batch in batches]
        sample = torch.cat([torch.tensor(batch.samples, device=batch.row.device)[batch.row] for batch in batches])
        self._order = sample.argsort(stable=True)  # stable: the tokens of a row are adjacent and in order
        self._back = self._order.argsort()

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Concatenate values of each micro-batch's tokens in the update's order."""
        return torch.cat(list(parts))[self._order]

    def split(self, values: Tensor) -> Sequence[Tensor]:
        """Undo :meth:`join`."""
        return torch.split(values[self._back], self._sizes)


def _weights_within(is_chosen: Tensor, unit: Tensor, config: LossConfig, like: Tensor) -> Tensor:
    kept = token_weights(unit[is_chosen].cpu().numpy(), config.mean, config.norm_length)
    weight = torch.zeros_like(like)
    weight[is_chosen] = torch.tensor(kept, dtype=like.dtype, device=like.device)
    return weight


def _mask_of(indices: Tensor, num_tokens: int) -> Tensor:
    mask = torch.zeros(num_tokens, dtype=torch.bool, device=indices.device)
    mask[indices] = True
    return mask
