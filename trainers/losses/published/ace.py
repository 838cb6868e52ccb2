"""ACE: punish wrong answers more, the more RL has made them likely.

Source: "Overconfident Errors Need Stronger Correction: Asymmetric Confidence Penalties for Reinforcement Learning". The
paper's measure is an answer's confidence shift ``c = log pi(y) / pi_ref(y)``, which scales negative advantages. The
scale ``1 + alpha softplus(c / length)`` is our choice: at least 1, near 1 for answers that became unlikely, and with a
mean over tokens, so that long answers are not overconfident for their length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym.plugins import Options
from agentgym.settings import NonNegative
from agentgym.trainers.losses.component import policy_loss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AceOptions(Options):
    """Keys of ACE."""

    off_at_0 = "alpha"
    kind: Literal["ace"] = "ace"
    alpha: NonNegative = 1.0
    """Growth of a negative advantage with the confidence shift."""


def prepare_ace(
    logprob: Tensor, logprob_ref: Tensor, trajectory: Tensor, advantage: Tensor, options: AceOptions
) -> dict[str, Tensor]:
    """Return the advantage of each of the update's tokens, ``[M]``."""
    import torch

    from agentgym.trainers.losses.ratios import mean_per_unit

    shift = mean_per_unit((logprob - logprob_ref).detach(), trajectory)
    scale = 1 + options.alpha * torch.nn.functional.softplus(shift)
    return {"scaled": torch.where(advantage < 0, advantage * scale, advantage)}


@policy_loss(
    "ace",
    paper="Overconfident Errors Need Stronger Correction: Asymmetric Confidence Penalties for Reinforcement Learning",
    status="reconstructed",
    options=AceOptions,
    prepare=prepare_ace,
    dual_clip=3.0,
    may_dual_clip=True,
    test="tests/trainers/test_ace.py::test_ace",
    limits="the scale as a function of the confidence shift is ours",
)
def ace(ratio: Tensor, scaled: Tensor, low: float, high: float, dual: float) -> tuple[Tensor, Tensor]:
    """PPO-clip whose negative advantages grow with the trajectory's mean of ``log pi / pi_ref``."""
    from agentgym.trainers.losses.policy import ppo_clip

    return ppo_clip(ratio, scaled, low, high, dual)
