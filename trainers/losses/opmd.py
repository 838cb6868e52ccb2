"""Losses of online policy mirror descent, for data that another policy or an earlier one sampled.

Neither has an importance ratio in front of its gradient, so no token's weight explodes with its age. The advantages
come from ``credit.estimator=opmd``, or from any other estimator that subtracts a baseline.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentgym.trainers.losses.options import OpmdOptions, OpmdSquaredOptions
from agentgym.trainers.losses.policy import TokenLoss
from agentgym.trainers.losses.ratios import clamped, sum_per_unit


def opmd(logprob: Tensor, advantage: Tensor, options: OpmdOptions) -> TokenLoss:
    """OPMD without a ratio: ``-A logp / (1 + tau)``.

    Source: "Trinity-RFT: A General-Purpose and Unified Framework for Reinforcement Fine-Tuning of Large Language
    Models", appendix A (``opmd_policy_loss.py``): the pairwise form, whose gradient at the policy that sampled is that
    of REINFORCE with the group's mean as its baseline.

    Example:
        >>> opmd(torch.tensor([-2.0, -1.0]), torch.tensor([1.0, -1.0]), OpmdOptions(tau=1.0))[0].tolist()
        [1.0, -0.5]
    """
    return -advantage * logprob / (1 + options.tau), torch.zeros_like(logprob, dtype=torch.bool)


def opmd_squared(
    logprob: Tensor, logprob_old: Tensor, advantage: Tensor, row: Tensor, turn: Tensor, options: OpmdSquaredOptions
) -> TokenLoss:
    """OPMD as regression: ``-A l + tau l^2 / 2`` per sequence, with its log-ratio ``l = log pi(y) / pi_old(y)``.

    Up to a constant this is ``(A - tau l)^2 / (2 tau)``. The squared log-ratio pulls the policy back to the one that
    sampled, and is 0 in a step's first update unless ``loss.mode=bypass`` compares with the engine's log-probabilities.
    Each token carries its share of the sum. A log-ratio is limited to ±20 in the factor of its gradient.

    Source: "Kimi k1.5: Scaling Reinforcement Learning with LLMs", equation 3: the gradient is
    ``(r - mean) grad log pi - tau / 2 grad (log pi / pi_old)^2``.

    Example:
        >>> new, old = torch.tensor([-1.0, -0.5]), torch.tensor([-1.2, -0.4])
        >>> one = torch.zeros(2, dtype=torch.long)
        >>> loss, _ = opmd_squared(new, old, torch.ones(2), one, one, OpmdSquaredOptions(tau=0.5))
        >>> round(loss.sum().item(), 6)
        -0.0975
    """
    ratio = logprob - logprob_old
    far = clamped(sum_per_unit(ratio.detach(), turn if options.level == "turn" else row))
    # the product rule gives the square twice the gradient of its value; the constant takes the value back
    loss = (options.tau * far - advantage) * ratio - (options.tau / 2 * far * ratio).detach()
    return loss, torch.zeros_like(logprob, dtype=torch.bool)
