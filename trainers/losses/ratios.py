"""Ratios of probabilities over tokens, turns and rows. All tensors are flat over the ``N`` sampled tokens."""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
SEQUENCE_LOG_RATIO_LIMIT = 10.0


def clamped(log_ratio: Tensor) -> Tensor:
    """Clamp a difference of log-probabilities to ±20, so that its exponential stays finite."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def sum_per_unit(value: Tensor, unit: Tensor) -> Tensor:
    """Return for each token the sum over its unit (turn or row), ``[N]``.

    Example:
        >>> sum_per_unit(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 0, 1])).tolist()
        [3.0, 3.0, 5.0]
    """
    if not len(value):
        return value
    sums = torch.zeros(int(unit.max()) + 1, dtype=value.dtype, device=value.device)
    return sums.index_add(0, unit, value)[unit]


def mean_per_unit(value: Tensor, unit: Tensor) -> Tensor:
    """Return for each token the mean over its unit, ``[N]``."""
    return sum_per_unit(value, unit) / sum_per_unit(torch.ones_like(value), unit)


def max_per_unit(value: Tensor, unit: Tensor) -> Tensor:
    """Return for each token the largest value of its unit, ``[N]``."""
    if not len(value):
        return value
    largest = torch.full((int(unit.max()) + 1,), -torch.inf, dtype=value.dtype, device=value.device)
    return largest.scatter_reduce(0, unit, value, "amax")[unit]


def first_of_unit(unit: Tensor) -> Tensor:
    """Mark the first token of each unit, ``[N]``. Tokens of a unit must be adjacent.

    Example:
        >>> first_of_unit(torch.tensor([0, 0, 2, 2, 1])).tolist()
        [True, False, True, False, True]
    """
    is_first = torch.ones_like(unit, dtype=torch.bool)
    is_first[1:] = unit[1:] != unit[:-1]
    return is_first


def sequence_log_ratio(logprob: Tensor, logprob_old: Tensor, unit: Tensor) -> Tensor:
    """Return GSPO's log-ratio per token: its value is the unit's mean log-ratio, its gradient the token's own, ``[N]``.

    ``log s_{i,k} = logp_k - sg[logp_k] + sg[mean_k (logp_k - logp_old_k)]``, at most 10. ``sg`` stops the gradient.

    Source: "Group Sequence Policy Optimization", the token-level variant; verl ``compute_policy_loss_gspo``.

    Example:
        >>> new = torch.tensor([0.06, -0.03, 0.03])
        >>> round(sequence_log_ratio(new, torch.zeros(3), torch.zeros(3, dtype=torch.long)).exp()[0].item(), 6)
        1.020201
    """
    mean = mean_per_unit((logprob - logprob_old).detach(), unit)
    return (logprob - logprob.detach() + mean).clamp(max=SEQUENCE_LOG_RATIO_LIMIT)


def prefix_minimum(ratio: Tensor, row: Tensor) -> Tensor:
    """Return for each token the smallest ratio among the earlier sampled tokens of its row, 1 for the first, ``[N]``.

    Tokens of a row must be adjacent and in order.

    Example:
        >>> ratio = torch.tensor([1.1, 0.6, 1.3, 0.9])
        >>> [round(x, 4) for x in prefix_minimum(ratio, torch.zeros(4, dtype=torch.long)).tolist()]
        [1.0, 1.1, 0.6, 0.6]
    """
    pieces = []
    for values in torch.split(ratio, torch.unique_consecutive(row, return_counts=True)[1].tolist()):
        lowest = torch.cummin(values, 0).values
        pieces.append(torch.cat([torch.ones_like(values[:1]), lowest[:-1]]))
    return torch.cat(pieces) if pieces else ratio
