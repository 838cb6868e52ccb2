"""Lp-Reg: hold up unlikely tokens that a wrong answer would press down, where they are no noise.

Source: "Low-probability Tokens Sustain Exploration in Reinforcement Learning with Verifiable Reward" (Lp-Reg;
``verl/trainer/ppo/core_algos.py``, ``compute_policy_loss_lp_reg``, and ``apply_min_p`` in ``dp_actor.py``). Tokens
below a share of the likeliest one's probability are taken for noise. Without them, the policy's distribution is
renormalised, so that every other token gains. Unlikely tokens of a negative advantage are drawn to that distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym.plugins import Options
from agentgym.settings import NonNegative, PositiveFraction
from agentgym.trainers.losses.component import regulariser

if TYPE_CHECKING:
    from torch import Tensor

FILTERED = -1e4
"""Log-probability of a token that counts as noise; the policy's is always higher, so that it has no term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LpRegOptions(Options):
    """Keys of Lp-Reg."""

    off_at_0 = "coef"
    kind: Literal["lp_reg"] = "lp_reg"
    coef: NonNegative = 1.0
    """Weight of the divergence."""
    noise: PositiveFraction = 0.02
    """Tokens less likely than this count as noise."""
    relative: bool = True
    """True if ``noise`` is a share of the likeliest token's probability, False if it is a probability."""
    share: PositiveFraction = 0.01
    """Share of the tokens with a negative advantage, from the least likely on, that have a term; one at least."""


def without_noise(log_distribution: Tensor, token: Tensor, options: LpRegOptions) -> Tensor:
    """Return the tokens' log-probabilities in the distribution without noise, ``[n]``; ``FILTERED`` for noise."""
    fixed = log_distribution.detach()
    least = options.noise * (fixed.amax(-1, keepdim=True).exp() if options.relative else 1.0)
    is_noise = fixed.exp() < least
    kept = fixed.masked_fill(is_noise, FILTERED)
    at = token[:, None]
    # where every token is noise, nothing is left to be drawn to
    return kept.log_softmax(-1).gather(-1, at).masked_fill(is_noise.gather(-1, at), FILTERED)[:, 0]


def prepare_lp_reg(logprob: Tensor, advantage: Tensor, measured: Tensor, options: LpRegOptions) -> dict[str, Tensor]:
    """Return each token's target, NaN where it has no term, ``[M]``; released code chooses within a micro-batch."""
    target = measured.new_full(measured.shape, float("nan"))
    negative = (advantage < 0).nonzero()[:, 0]
    if not len(negative):
        return {"target": target}
    least = logprob.detach()[negative].topk(max(1, int(len(negative) * options.share)), largest=False).indices
    chosen = negative[least]
    target[chosen] = measured[chosen]
    return {"target": target}


@regulariser(
    "lp_reg",
    paper="Low-probability Tokens Sustain Exploration in Reinforcement Learning with Verifiable Reward",
    parity="CarlanLark/Lp-Reg-dev@33b27e2:verl/trainer/ppo/core_algos.py",
    options=LpRegOptions,
    measure=without_noise,
    prepare=prepare_lp_reg,
    averages_over="loss",
    test="tests/trainers/test_lp_reg.py::test_lp_reg",
    limits="the least likely tokens are those of the update, the release's those of a micro-batch",
)
def lp_reg(logprob: Tensor, target: Tensor) -> Tensor:
    """KL(policy || policy without noise) by k3, at unlikely tokens of negative advantage below the target; else 0."""
    import torch

    from agentgym.trainers.losses.regularisers import kl

    has_term = logprob.detach() < target  # False for NaN
    return torch.where(has_term, kl(logprob, torch.where(has_term, target, logprob.detach())), 0.0)
