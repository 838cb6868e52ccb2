"""FlashREINFORCE: importance-weighted REINFORCE without a clip, and without trajectories that have drifted.

Source: "FlashREINFORCE" (yifanzhang-pro/FlashREINFORCE, ``flashreinforce/loss.py``). The importance ratio weighs the
score without a clip and without a gradient of its own. A trajectory whose mean binary KL from the policy that sampled
it is above a bound has no gradient, and counts in the mean all the same. The release's advantage is the reward less the
batch's mean, one rollout per task; here it is that of the estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym.plugins import Options
from agentgym.settings import NonNegative, PositiveFraction
from agentgym.trainers.losses.component import policy_loss
from agentgym.trainers.losses.published.dppo import binary_kl

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashReinforceOptions(Options):
    """Keys of FlashREINFORCE."""

    kind: Literal["flash_reinforce"] = "flash_reinforce"
    delta: NonNegative = 3e-3
    """Largest mean binary KL of a trajectory that trains, in nats per token."""
    failed_share: PositiveFraction = 1.0
    """Share of a failed trajectory's tokens that train, from the most uncertain on."""
    right_from: float = 0.5
    """Reward from which on a trajectory has not failed."""


def prepare_flash_reinforce(
    logprob: Tensor,
    logprob_old: Tensor,
    entropy: Tensor,
    advantage: Tensor,
    reward: Tensor,
    trajectory: Tensor,
    options: FlashReinforceOptions,
) -> dict[str, Tensor]:
    """Return the weight of each token's score, ``[M]``: 0 where it does not train."""
    import torch

    from agentgym.trainers.losses.ratios import mean_per_unit

    trains = mean_per_unit(binary_kl(logprob_old, logprob.detach()), trajectory) <= options.delta
    if options.failed_share < 1:
        trains &= _most_uncertain(entropy.detach(), trajectory, options.failed_share) | (reward >= options.right_from)
    # a rejected token's ratio may be infinite, and infinity times 0 is no number
    ratio = torch.where(trains, logprob.detach() - logprob_old, 0.0).exp()
    return {"scored": torch.where(trains, ratio * advantage, 0.0)}


def _most_uncertain(entropy: Tensor, trajectory: Tensor, share: float) -> Tensor:
    """Return True for a share of each trajectory's tokens, rounded up, of the highest entropy; ties go by order."""
    import math

    import torch

    found = torch.zeros_like(trajectory, dtype=torch.bool)
    for one in set(trajectory.tolist()):
        mine = (trajectory == one).nonzero()[:, 0]
        order = entropy[mine].argsort(descending=True, stable=True)
        found[mine[order[: math.ceil(share * len(mine))]]] = True
    return found


@policy_loss(
    "flash_reinforce",
    paper="FlashREINFORCE",
    status="reconstructed",
    options=FlashReinforceOptions,
    prepare=prepare_flash_reinforce,
    clip_low=None,
    clip_high=None,
    is_bounded=False,
    aggregation="seq-mean-token-mean",
    test="tests/trainers/test_flash_reinforce.py::test_flash_reinforce",
    limits="the old policy samples under loss.mode=bypass, as in the release; the baseline is that of the estimator",
)
def flash_reinforce(logprob: Tensor, scored: Tensor) -> tuple[Tensor, Tensor]:
    """``-sg[rho A] log pi``, 0 for trajectories that have drifted; the mean is over all of an update."""
    return -scored * logprob, scored == 0
