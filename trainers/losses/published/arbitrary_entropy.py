"""Arbitrary-entropy policy optimisation: REINFORCE towards a hotter or a colder policy, until the entropy is on target.

Source: "Arbitrary Entropy Policy Optimization: Entropy Is Controllable in Reinforcement Fine-tuning" (AEPO; the branch
``DCPO`` of ``verl/trainer/ray_trainer.py``). Right answers are rewarded as if a policy of another temperature had
sampled them, by the importance weight ``pi_T / pi``. Below the target T is above 1, and above it T is below 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from agentgym.plugins import Options
from agentgym.settings import NonNegative, Range
from agentgym.trainers.losses.component import policy_loss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ArbitraryEntropyOptions(Options):
    """Keys of the loss."""

    off_at_0 = "most"
    kind: Literal["arbitrary_entropy"] = "arbitrary_entropy"
    target: NonNegative = 0.5
    """Mean entropy of tokens in nats."""
    hot: Annotated[float, Range(above=1)] = 1.2
    """Temperature, relative to that of sampling, below the target."""
    cold: Annotated[float, Range(above=0, below=1)] = 0.8
    """Temperature above the target."""
    right_above: float = 0.05
    """Trajectories of a higher reward are right."""
    most: NonNegative = 0.1
    """Largest distance from the target that counts."""


def at_temperatures(log_distribution: Tensor, token: Tensor, options: ArbitraryEntropyOptions) -> Tensor:
    """Return the log-probability ratios of the hot and of the cold policy to the policy, ``[n, 2]``."""
    import torch

    fixed = log_distribution.detach()
    at = token[:, None]
    each = [(fixed / t).log_softmax(-1).gather(-1, at) for t in (options.hot, options.cold)]
    return torch.cat(each, dim=-1) - fixed.gather(-1, at)


def prepare_arbitrary_entropy(
    measured: Tensor,
    entropy: Tensor,
    advantage: Tensor,
    reward: Tensor,
    trajectory: Tensor,
    options: ArbitraryEntropyOptions,
) -> dict[str, Tensor]:
    """Return the advantage of each of the update's tokens, ``[M]``; without a right trajectory it stays."""
    distance = options.target - float(entropy.detach().mean())
    is_right = reward > options.right_above
    num_right, num = (len(set(some.tolist())) for some in (trajectory[is_right], trajectory))
    if not num_right:
        return {"mixed": advantage}
    weight = min(abs(distance), options.most) * num / num_right
    share = weight / (1 + weight)
    towards = measured[:, 0 if distance >= 0 else 1].exp()
    return {"mixed": (1 - share) * advantage + share * is_right * towards}


@policy_loss(
    "arbitrary_entropy",
    paper="Arbitrary Entropy Policy Optimization: Entropy Is Controllable in Reinforcement Fine-tuning",
    status="reconstructed",
    options=ArbitraryEntropyOptions,
    measure=at_temperatures,
    prepare=prepare_arbitrary_entropy,
    dual_clip=3.0,
    may_dual_clip=True,
    test="tests/trainers/test_arbitrary_entropy.py::test_arbitrary_entropy",
    limits="importance weights in place of the paper's further samples at another temperature",
)
def arbitrary_entropy(ratio: Tensor, mixed: Tensor, low: float, high: float, dual: float) -> tuple[Tensor, Tensor]:
    """PPO-clip of the advantage, mixed with ``pi_T / pi`` of right trajectories until the entropy is on target."""
    from agentgym.trainers.losses.policy import ppo_clip

    return ppo_clip(ratio, mixed, low, high, dual)
