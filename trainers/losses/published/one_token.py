"""One-Token Rollout: learn from demonstrated tokens as from episodes of one token that the policy plays.

Source: "One-Token Rollout: Guiding Supervised Fine-Tuning of LLMs with Policy Gradient". At each place of a
demonstration the paper samples tokens from the policy, rewards those that equal the demonstrated one by 1 and the
others by beta, and takes the policy gradient. Its sum over samples is replaced by its expectation here, which the whole
vocabulary gives: the gradient is the same on average, and needs no samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from agentgym.plugins import Options
from agentgym.settings import NonNegative, Positive, Range
from agentgym.trainers.losses.component import regulariser

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTokenOptions(Options):
    """Keys of One-Token Rollout."""

    off_at_0 = "coef"
    kind: Literal["one_token"] = "one_token"
    coef: NonNegative = 1.0
    """Weight of the term beside the policy loss; ``loss.weight=0`` learns from demonstrations alone."""
    beta: Annotated[float, Range(below=1)] = -0.1
    """Reward of a token that differs from the demonstrated one, whose own is 1."""
    temperature: Positive = 1.3
    """Temperature of the samples, relative to the policy's."""


@regulariser(
    "one_token",
    paper="One-Token Rollout: Guiding Supervised Fine-Tuning of LLMs with Policy Gradient",
    status="reconstructed",
    options=OneTokenOptions,
    phase="vocabulary",
    test="tests/trainers/test_one_token.py::test_one_token",
    limits="the expectation over all tokens stands for the paper's samples",
)
def one_token(log_distribution: Tensor, token: Tensor, demonstrated: Tensor, options: OneTokenOptions) -> Tensor:
    """``-sum_a sg[q(a)] R(a) log pi(a)`` on demonstrated tokens, 0 on others, ``[n]``; q is pi at the temperature.

    ``R`` is 1 for the demonstrated token, else beta. At temperature 1 its gradient is
    ``-(1 - beta) pi(y) grad log pi(y)`` for the demonstrated token y. That of cross-entropy is multiplied by the
    token's probability, so that demonstrations that the policy would not sample pull less.
    """
    import torch

    sampled = (log_distribution.detach() / options.temperature).softmax(-1)
    at = token[:, None]
    hit = (sampled.gather(-1, at) * log_distribution.gather(-1, at))[:, 0]
    # a token of probability 0 has no sample, and 0 times its infinite log-probability is no number
    every = torch.where(sampled > 0, sampled * log_distribution, 0.0).sum(-1)
    return torch.where(demonstrated, -((1 - options.beta) * hit + options.beta * every), 0.0)
