"""Corrections for the gap between the trainer's and the engine's probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0


def token_tis(logprob_old: Tensor, logprob_rollout: Tensor, cap: float) -> Tensor:
    """Token-level truncated importance sampling: ``min(pi_old / mu, cap)``, detached, same shape as its input.

    ``pi_old`` is the trainer's policy before the update, ``mu`` the engine's. A cap of 0 turns it off (weights 1).

    Source: "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"; verl ``rollout_corr_helper.py``.

    Example:
        >>> rho = torch.tensor([0.3, 0.9, 1.2, 4.0, 6.0])
        >>> [round(x, 4) for x in token_tis(rho.log(), torch.zeros(5), 2.0).tolist()]
        [0.3, 0.9, 1.2, 2.0, 2.0]
    """
    if cap == 0:
        return torch.ones_like(logprob_old)
    log_ratio = (logprob_old - logprob_rollout).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return log_ratio.exp().clamp(max=cap)
