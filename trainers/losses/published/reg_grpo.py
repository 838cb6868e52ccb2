"""Reg-GRPO: regress each episode's advantage on its log-ratio to the old policy, without a clip.

Source: "DeepVideo-R1: Video Reinforcement Fine-Tuning via Difficulty-aware Regressive GRPO" (Reg-GRPO). The policy that
maximises reward under a KL penalty has a log-ratio that is linear in the reward, up to a constant of the prompt. So the
log-ratio less its mean over the group predicts the advantage, and the loss is the squared error of that prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym.plugins import Options
from agentgym.settings import Positive
from agentgym.trainers.losses.component import policy_loss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RegGrpoOptions(Options):
    """Keys of Reg-GRPO."""

    kind: Literal["reg_grpo"] = "reg_grpo"
    scale: Positive = 1.0
    """Advantage that a log-ratio of 1 above the group's mean predicts. The paper divides by the log-ratios' deviation,
    which is 0 before a step's first update; this constant is ours."""


def prepare_reg_grpo(
    logprob: Tensor,
    logprob_old: Tensor,
    advantage: Tensor,
    trajectory: Tensor,
    group: Tensor,
    loss_weight: Tensor,
    options: RegGrpoOptions,
) -> dict[str, Tensor]:
    """Return the slope of the update's loss by each token's log-probability, and the tokens' parts of it, ``[M]``.

    Both are divided by the tokens' weights, which the loss multiplies by. An episode's advantage is the mean over its
    tokens.
    """
    import torch

    from agentgym.trainers.losses.whole_episodes import Episodes, undone

    episodes = Episodes(trajectory, group)
    num_tokens = episodes.num_tokens

    def centred(value: Tensor) -> Tensor:
        return value - episodes.over_group(value) / episodes.over_group(torch.ones_like(value))

    predicted = options.scale * centred(episodes.total(logprob - logprob_old))
    error = predicted - episodes.total(advantage) / num_tokens
    # the mean over the group takes part in every member's prediction
    slope = 2 * options.scale * centred(error) / episodes.num_episodes
    value = error.square() / (num_tokens * episodes.num_episodes)
    return {"slope": undone(slope, loss_weight), "value": undone(value, loss_weight)}


@policy_loss(
    "reg_grpo",
    paper="DeepVideo-R1: Video Reinforcement Fine-Tuning via Difficulty-aware Regressive GRPO",
    status="reconstructed",
    options=RegGrpoOptions,
    prepare=prepare_reg_grpo,
    clip_low=None,
    clip_high=None,
    test="tests/trainers/test_reg_grpo.py::test_reg_grpo",
    limits="a constant scale stands for the log-ratios' deviation; without the paper's augmented tasks",
)
def reg_grpo(logprob: Tensor, slope: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """``mean (A - scale (rho - mean rho))^2`` over episodes, with ``rho = log pi(y) / pi_old(y)``.

    A group of one predicts 0 and learns nothing. Flat groups are drawn back to the old policy.
    """
    return value + slope * (logprob - logprob.detach()), logprob.detach().isnan()
