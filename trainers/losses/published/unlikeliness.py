"""Unlikeliness reward: among right episodes of a group, the likelier ones get less.

Source: "Rewarding the Unlikely: Lifting GRPO Beyond Distribution Sharpening" (``verl/trainer/ppo/ray_lean_trainer.py``,
``_compute_advantages``). GRPO pushes up right episodes that were likely anyway, and rare ones are lost. Rewards are
multiplied by ``1 - penalty rank / n`` before the group's normalisation. The rank is that of the mean log-probability of
an episode's tokens before the update, from 0 for the least likely. Credit has no log-probabilities, so this is a loss,
which computes advantages of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym.plugins import Options
from agentgym.settings import PositiveFraction
from agentgym.trainers.losses.component import policy_loss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlikelinessOptions(Options):
    """Keys of the unlikeliness reward."""

    kind: Literal["unlikeliness"] = "unlikeliness"
    penalty: PositiveFraction = 0.25
    """Share of its reward that the likeliest episode of a large group loses."""


def prepare_unlikeliness(
    logprob_old: Tensor, reward: Tensor, trajectory: Tensor, group: Tensor, options: UnlikelinessOptions
) -> dict[str, Tensor]:
    """Return the advantage of each token's episode, ``[M]``: GRPO's of the lowered rewards.

    A group of one keeps its reward, as in the released code.
    """
    import torch

    from agentgym.trainers.losses.whole_episodes import Episodes

    episodes = Episodes(trajectory, group)
    likelihood = episodes.total(logprob_old) / episodes.num_tokens
    advantage = torch.zeros_like(likelihood)
    for number in range(episodes.num_groups):
        here = episodes.group == number
        own, of_token = torch.unique(episodes.trajectory[here], return_inverse=True)
        first = torch.stack([(of_token == at).nonzero()[0, 0] for at in range(len(own))])
        rank = likelihood[here][first].argsort(stable=True).argsort(stable=True).to(likelihood)
        value = reward[here][first].to(likelihood) * (1 - options.penalty * rank / len(own))
        if len(own) > 1:
            value = (value - value.mean()) / (value.std() + 1e-6)
        advantage[here] = value[of_token]
    return {"unlikely_advantage": advantage}


@policy_loss(
    "unlikeliness",
    paper="Rewarding the Unlikely: Lifting GRPO Beyond Distribution Sharpening",
    parity="AndreHe02/rewarding-unlikely-release@ca1cff0:verl/trainer/ppo/ray_lean_trainer.py",
    options=UnlikelinessOptions,
    prepare=prepare_unlikeliness,
    test="tests/trainers/test_unlikeliness.py::test_unlikeliness",
    limits="the estimator's advantages are not used; episodes that are equally likely are ranked in their order",
)
def unlikeliness(ratio: Tensor, unlikely_advantage: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """PPO-clip with GRPO's advantages of ``reward (1 - penalty rank / n)``, rank 0 for the least likely episode."""
    from agentgym.trainers.losses.policy import ppo_clip

    return ppo_clip(ratio, unlikely_advantage, low, high)
