"""RL-PLUS: a policy loss for groups that hold demonstrations beside the policy's own episodes."""

from __future__ import annotations

import torch
from torch import Tensor

from agentgym.trainers.losses.options import RlPlusOptions
from agentgym.trainers.losses.policy import TokenLoss, ppo_clip


def rl_plus(
    ratio: Tensor,
    logprob: Tensor,
    logprob_old: Tensor,
    advantage: Tensor,
    demonstrated: Tensor,
    low: float,
    high: float,
    options: RlPlusOptions,
) -> TokenLoss:
    """PPO-clip on the policy's tokens, and ``-m A (1 - sg[pi])^gamma`` on demonstrated ones.

    ``m = 2 pi / (pi_old + w)`` is a multiple importance sampling ratio, at most 4 times pi. The demonstrator's
    distribution is unknown, and ``w = (pi_old + 1) / 2`` stands for it: half the old policy and half certainty. The
    factor ``(1 - sg[pi])^gamma`` turns the gradient to tokens that are still unlikely.

    Args:
        ratio, advantage, low, high: as in :func:`~agentgym.trainers.losses.policy.ppo_clip`.
        logprob, logprob_old: ``[N]`` under the trained and the old policy.
        demonstrated: ``[N]`` True for tokens of demonstrations.
        options: the exponent gamma.

    Source: "RL-PLUS: Countering Capability Boundary Collapse of LLMs in Reinforcement Learning with Hybrid-policy
    Optimization" (``rlplus_core_alg.py``, ``compute_token_on_off_policy_loss``). The release trains without the clip.

    Example:
        >>> logprob, shown = torch.log(torch.tensor([0.25, 0.25])), torch.tensor([True, False])
        >>> ones, options = torch.ones(2), RlPlusOptions(gamma=1.0)
        >>> loss, _ = rl_plus(ones, logprob, logprob, ones, shown, 0.8, 1.28, options)
        >>> [round(x, 6) for x in loss.tolist()]
        [-0.428571, -1.0]
    """
    loss, was_clipped = ppo_clip(ratio, advantage, low, high)
    chance, before = logprob.exp(), logprob_old.exp()
    multiple = 2 * chance / (before + 0.5 * (before + 1))
    taught = -multiple * advantage * (1 - chance.detach()).clamp(min=0.0) ** options.gamma
    return torch.where(demonstrated, taught, loss), was_clipped & ~demonstrated
