"""The vocabulary head, applied to a few tokens at a time, so that the logits of a batch never exist all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from agentgym.trainers.kinds import max_logits

Made = TypeVar("Made")
VocabularyTerm: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""A function of log-probabilities ``[n, V]`` and the indices of their tokens ``[n]``, with a number per token."""


def head_logprobs(
    head: Callable[[Tensor], Tensor],
    states: Tensor,
    targets: Tensor,
    temperature: float,
    *,
    entropy_has_gradient: bool = False,
    terms: Sequence[VocabularyTerm] = (),
) -> tuple[Tensor, ...]:
    """Return log-probabilities ``[N]`` of the targets, entropies ``[N]`` in nats, and terms ``[N]``, at a temperature.

    More than ``max_logits`` logits are computed in pieces, and recomputed for the gradient.

    Args:
        head: maps states to logits ``[N, V]``.
        states: hidden states ``[N, hidden]``.
        targets: token ids ``[N]``.
        temperature: divisor of the logits.
        entropy_has_gradient: True if a regulariser needs the gradient of the entropy.
        terms: functions of the log-probabilities of the whole vocabulary, ``[n, V]``, and of the indices of these
            tokens, ``[n]``; each returns a number per token.

    Example:
        >>> logprobs, entropies = head_logprobs(torch.nn.Identity(), torch.zeros(2, 4), torch.tensor([0, 3]), 1.0)
        >>> logprobs.exp().tolist()
        [0.25, 0.25]
    """

    def piece(states: Tensor, targets: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        logits = head(states)
        # Softmax in float32: with the 8 significant bits of bfloat16, ratios near 1 would be mostly rounding.
        logits = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
        distribution = torch.log_softmax(logits, dim=-1)
        with torch.set_grad_enabled(entropy_has_gradient and torch.is_grad_enabled()):
            entropy = -(distribution.exp() * distribution).sum(-1)
        logprob = distribution.gather(-1, targets[:, None])[:, 0]
        return logprob, entropy, *(term(distribution, index) for term in terms)

    index = torch.arange(len(targets), device=targets.device)
    return tuple(torch.cat(parts) for parts in zip(*_in_pieces(piece, head, states, targets, index), strict=True))


def head_cross_entropies(head: Callable[[Tensor], Tensor], states: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropies ``[N]`` of the targets; logits are computed as in :func:`head_logprobs`.

    Example:
        >>> head_cross_entropies(torch.nn.Identity(), torch.zeros(2, 4), torch.tensor([0, 3])).exp().tolist()
        [4.0, 4.0]
    """

    def piece(states: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(head(states).float(), targets, reduction="none")

    return torch.cat(_in_pieces(piece, head, states, targets))


def _in_pieces(piece: Callable[..., Made], head: Callable[[Tensor], Tensor], *columns: Tensor) -> list[Made]:
    """Return what a function makes of a few tokens at a time; several pieces are made again for the gradient.

    Args:
        columns: the states, and what else the function takes, with one entry per token.
    """
    rows = max(1, max_logits(is_gpu=columns[0].is_cuda) // vocabulary_of(head))
    pieces = list(zip(*(torch.split(column, rows) for column in columns), strict=True))
    if len(pieces) == 1 or not torch.is_grad_enabled():
        return [piece(*some) for some in pieces]
    return [checkpoint(piece, *some, use_reentrant=False) for some in pieces]


def vocabulary_of(head: object) -> int:
    """Return the size of a head's vocabulary, 1 if the head does not tell."""
    return int(getattr(head, "out_features", 1))
