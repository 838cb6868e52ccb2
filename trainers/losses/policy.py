"""Policy losses per token. Each has one gate, the function that limits the importance ratio's effect on the gradient.

Each function takes flat columns over the ``N`` sampled tokens of a micro-batch, and returns the loss per token ``[N]``
and where the gate acted ``[N]``. Advantages and old log-probabilities have no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentgym.trainers.losses.options import BapoOptions, MinproOptions, OpmdOptions, OpmdSquaredOptions, RlPlusOptions
from agentgym.trainers.losses.ratios import clamped, prefix_minimum, sum_per_unit

TokenLoss = tuple[Tensor, Tensor]


def ppo_clip(ratio: Tensor, advantage: Tensor, low: float, high: float, dual: float = 0.0) -> TokenLoss:
    """PPO's clipped objective as a loss: ``max(-A r, -A clip(r, low, high))``.

    Args:
        ratio, advantage: ``[N]``.
        low, high: bounds of the ratio, ``1 - clip_low`` and ``1 + clip_high``. A larger upper bound is DAPO's
            clip-higher.
        dual: at negative advantages the loss is at most ``-A dual``; 0 for no such bound.

    Source: "Proximal Policy Optimization Algorithms", eq. 7; the dual clip from "Mastering Complex Control in MOBA
    Games with Deep Reinforcement Learning", eq. 6.

    Example:
        >>> ratio, advantage = torch.tensor([0.3, -0.4, 0.05, -0.1]).exp(), torch.tensor([1.0, 1.0, -1.0, -1.0])
        >>> [round(x, 4) for x in ppo_clip(ratio, advantage, 0.8, 1.28)[0].tolist()]
        [-1.28, -0.6703, 1.0513, 0.9048]
        >>> ppo_clip(torch.tensor([5.0]), torch.tensor([-1.0]), 0.8, 1.28, dual=3.0)[0].tolist()
        [3.0]
    """
    plain, clipped = -advantage * ratio, -advantage * ratio.clamp(low, high)
    was_clipped = clipped > plain
    loss = torch.where(was_clipped, clipped, plain)  # the maximum, whose gradient at a bound changed in torch 2.15
    # At A < 0 the maximum above takes -A r, which is unbounded in r: one stale token could dominate the update.
    if dual:
        bound = -advantage * dual
        over = (advantage < 0) & (loss > bound)
        loss, was_clipped = torch.where(over, bound, loss), was_clipped | over
    return loss, was_clipped


def cispo(logprob: Tensor, ratio: Tensor, advantage: Tensor, low: float, high: float) -> TokenLoss:
    """CISPO: ``-sg[clip(r, low, high)] A logp``. The weight is clipped, not the gradient, so every token trains.

    Source: "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention", eq. 4.

    Example:
        >>> logprob = torch.zeros(3, requires_grad=True)
        >>> loss, _ = cispo(logprob, torch.tensor([0.5, 1.0, 3.0]), torch.ones(3), 0.0, 1.28)
        >>> [round(-x, 2) for x in torch.autograd.grad(loss.sum(), logprob)[0].tolist()]
        [0.5, 1.0, 1.28]
    """
    weight = ratio.detach().clamp(low, high)
    return -weight * advantage * logprob, weight != ratio.detach()


def sapo(ratio: Tensor, advantage: Tensor, tau_positive: float = 1.0, tau_negative: float = 1.05) -> TokenLoss:
    """SAPO, a soft gate instead of a clip: ``-f(r) A`` with ``f(r) = sigmoid(tau (r - 1)) 4 / tau``.

    At r = 1 its *gradient* is that of ``-A r``; its value is twice as large. The gradient decays away from r = 1 but
    never becomes 0.

    Source: "Soft Adaptive Policy Optimization", eq. 6; verl ``compute_policy_loss_sapo``.

    Example:
        >>> loss, _ = sapo(torch.tensor([0.5, 1.0, 2.0]), torch.ones(3))
        >>> [round(-x, 6) for x in loss.tolist()]
        [1.510163, 2.0, 2.924234]
    """
    tau = torch.full_like(ratio, tau_negative).masked_fill(advantage > 0, tau_positive)
    gate = torch.sigmoid(tau * (ratio - 1)) * 4 / tau
    return -gate * advantage, torch.zeros_like(ratio, dtype=torch.bool)


def minpro_ratio(ratio: Tensor, row: Tensor, *, cap_min_at_1: bool = False) -> Tensor:
    """Experimental (reconstructed): a token's ratio times the smallest earlier ratio of its row, which is detached.

    The exact correction is the product of all ratios up to the token, but its variance grows with the length. The
    smallest ratio takes its place.

    Source: "A Step Back: Prefix Importance Ratio Stabilizes Policy Optimization" (only the idea; the form is ours).

    Example:
        >>> ratio = minpro_ratio(torch.tensor([1.1, 0.6, 1.3, 0.9]), torch.zeros(4, dtype=torch.long))
        >>> [round(x, 4) for x in ratio.tolist()]
        [1.1, 0.66, 0.78, 0.54]
    """
    lowest = prefix_minimum(ratio.detach(), row)
    return ratio * (lowest.clamp(max=1.0) if cap_min_at_1 else lowest)


def minpro(
    logprob: Tensor,
    ratio: Tensor,
    advantage: Tensor,
    row: Tensor,
    low: float,
    high: float,
    *,
    dual: float = 0.0,
    options: MinproOptions,
) -> TokenLoss:
    """Experimental: the policy loss named by ``surrogate``, with :func:`minpro_ratio` as its ratio."""
    ratio = minpro_ratio(ratio, row, cap_min_at_1=options.cap_min_at_1)
    if options.surrogate == "cispo":
        return cispo(logprob, ratio, advantage, low, high)
    return ppo_clip(ratio, advantage, low, high, dual)


def prepare_bapo(ratio: Tensor, advantage: Tensor, options: BapoOptions) -> dict[str, tuple[float, float]]:
    """Return the bounds of the ratio that :func:`bapo_bounds` finds for the update."""
    return {"ratio_bounds": bapo_bounds(ratio, advantage, options)}


def bapo(ratio: Tensor, advantage: Tensor, ratio_bounds: tuple[float, float], dual: float) -> TokenLoss:
    """PPO-clip with the bounds that :func:`bapo_bounds` found for the update."""
    low, high = ratio_bounds
    return ppo_clip(ratio, advantage, low, high, dual)


def aepo_clip(ratio: Tensor, advantage: Tensor, low: float, high: float, dual: float = 3.0) -> TokenLoss:
    """PPO-clip whose upper bound keeps a gradient: ``high / sg(r) r`` instead of ``high``.

    The value is that of PPO-clip. A clipped token with a positive advantage has the gradient of a ratio at the bound.
    The paper applies this bound to tokens of high entropy; the released code applies it to all tokens.

    Args:
        ratio, advantage, low, high, dual: as in :func:`ppo_clip`.

    Source: "Agentic Entropy-Balanced Policy Optimization" (``compute_policy_loss_entropy_balanced_clipping``).

    Example:
        >>> logprob = torch.log(torch.tensor([2.0, 1.1])).requires_grad_()
        >>> loss, _ = aepo_clip(logprob.exp(), torch.ones(2), 0.8, 1.25)
        >>> [round(x, 4) for x in loss.tolist()]
        [-1.25, -1.1]
        >>> [round(x, 4) for x in torch.autograd.grad(loss.sum(), logprob)[0].tolist()]
        [-1.25, -1.1]
    """
    loss, was_clipped = ppo_clip(ratio, advantage, low, high, dual)
    keeps = (advantage > 0) & (ratio > high)
    return torch.where(keeps, -advantage * (high / ratio.detach() * ratio), loss), was_clipped & ~keeps


def reinforce(logprob: Tensor, ratio: Tensor, advantage: Tensor, cap: float = 2.0) -> TokenLoss:
    """REINFORCE: ``-sg[min(r, cap)] A logp``; a cap of 0 leaves the ratio out.

    In bypass mode the ratio is pi_theta / mu, so this is REINFORCE with truncated importance sampling.

    Source: verl ``docs/algo/rollout_corr_math.md`` (bypass with policy gradient).
    """
    if not cap:
        return -advantage * logprob, torch.zeros_like(ratio, dtype=torch.bool)
    weight = ratio.detach().clamp(max=cap)
    return -weight * advantage * logprob, ratio.detach() > cap


def bapo_bounds(ratio: Tensor, advantage: Tensor, options: BapoOptions) -> tuple[float, float]:
    """Search BAPO's bounds of the ratio for one update: raise them until positive contributions are large enough.

    Contributions are ``A min(r, high)`` at positive advantages and ``A max(r, low)`` at negative ones. First the lower
    bound rises, then the upper one. Without negative contributions the initial bounds are returned.

    Args:
        ratio, advantage: ``[M]``, over all tokens of the update.
        options: initial bounds, limits, step, and the target ratio of positive to negative contributions.

    Source: "BAPO: Stabilizing Off-Policy Reinforcement Learning for LLMs via Balanced Policy Optimization with
    Adaptive Clipping" (``recipe/bapo/policy_loss.py``).

    Example:
        >>> ratio, advantage = torch.tensor([0.5, 1.0, 1.5, 0.9]), torch.tensor([1.0, -1.0, 1.0, -1.0])
        >>> [round(bound, 2) for bound in bapo_bounds(ratio, advantage, BapoOptions(target=0.95))]
        [0.8, 1.35]
    """
    low, high = options.low, options.high
    # min() shortens the last step, so that the search ends exactly at the limit
    while low < options.low_max and _positive_share(ratio, advantage, low, high) < options.target:
        low = min(low + options.step, options.low_max)
    while high < options.high_max and _positive_share(ratio, advantage, low, high) < options.target:
        high = min(high + options.step, options.high_max)
    return low, high


def _positive_share(ratio: Tensor, advantage: Tensor, low: float, high: float) -> float:
    kept = torch.where(advantage >= 0, advantage * ratio.clamp(max=high), advantage * ratio.clamp(min=low))
    negative = -kept.clamp(max=0).sum().item()
    return kept.clamp(min=0).sum().item() / (negative + 1e-8) if negative else float("inf")


def log_ratio_per_token(logprob: Tensor, logprob_old: Tensor) -> Tensor:
    """Return ``log pi_theta / pi_old`` per token ``[N]``, clamped."""
    return clamped(logprob - logprob_old)


# ----------------------- losses of online policy mirror descent, for data that another policy or an earlier one sampled
# Neither has an importance ratio in front of its gradient, so no token's weight explodes with its age. The advantages
# come from ``credit.estimator=opmd``, or from any other estimator that subtracts a baseline.


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


# -------------------------- RL-PLUS: a policy loss for groups that hold demonstrations beside the policy's own episodes


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
