"""DPPO: leave out tokens whose probability has moved too far, in place of a clip of their ratio.

Source: "Rethinking the Trust Region in LLM Reinforcement Learning" (sail-sg/Stable-RL,
``compute_policy_loss_with_mask`` with ``dppo_binary_tv_recompute`` and ``dppo_binary_kl_recompute``). A ratio of 1.5 is
a large move for a token of probability 0.6 and none for one of 0.0001. The divergence of the two-way choice between
this token and all others measures the move itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from agentgym.plugins import Options
from agentgym.settings import Positive, Range
from agentgym.trainers.losses.component import policy_loss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DppoOptions(Options):
    """Keys of DPPO."""

    kind: Literal["dppo"] = "dppo"
    divergence: Literal["tv", "kl"] = "tv"
    """Measure of the move: the difference of the probabilities, or the KL of the two-way choice in nats."""
    low: Positive = 0.15
    """Largest divergence of a token that gets less likely at a negative advantage. verl has 0.15 for ``tv`` and 0.05
    for ``kl``."""
    high: Positive = 0.15
    """Largest divergence of a token that gets more likely at a positive advantage."""
    cap: Annotated[float, Range(at_least=1)] = 20.0
    """Upper limit of the detached ratio that weighs a token. The paper warns of small ones."""


def binary_kl(before: Tensor, now: Tensor) -> Tensor:
    """Return the KL in nats between two-way choices with these log-probabilities of the token, ``[N]``."""
    rest, left = 1 - before.exp(), 1 - now.exp()
    return before.exp() * (before - now) + rest * ((rest + 1e-8) / (left + 1e-8)).log()


@policy_loss(
    "dppo",
    paper="Rethinking the Trust Region in LLM Reinforcement Learning",
    parity="sail-sg/Stable-RL@c6af1d1:verl/trainer/ppo/core_algos.py",
    options=DppoOptions,
    clip_low=None,
    clip_high=None,
    test="tests/trainers/test_dppo.py::test_dppo",
    limits="the two-way divergences; those of the top k tokens need the old policy's vocabulary",
)
def dppo(
    logprob: Tensor, logprob_old: Tensor, ratio: Tensor, advantage: Tensor, options: DppoOptions
) -> tuple[Tensor, Tensor]:
    """``-sg[min(r, cap)] A logp`` on tokens within the trust region, 0 on those that leave it as A wants.

    The old policy is the one of the ratio: with ``loss.mode=bypass`` the one that sampled, as the paper prefers.
    """
    now = logprob.detach()
    moved = now.exp() - logprob_old.exp()
    size = moved.abs() if options.divergence == "tv" else binary_kl(logprob_old, now)
    left = ((advantage > 0) & (moved > 0) & (size > options.high)) | (
        (advantage < 0) & (moved < 0) & (size > options.low)
    )
    return -ratio.detach().clamp(max=options.cap) * advantage * logprob * ~left, left
