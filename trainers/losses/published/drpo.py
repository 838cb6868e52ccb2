"""DRPO: DisCO in which short right episodes count more, so that no right one is pushed down for its length.

Source: "DRPO: Efficient Reasoning via Decoupled Reward Policy Optimization" (``verl/verl/trainer/ppo/core_algos.py``,
``compute_policy_loss_drpo``). With a length reward inside GRPO, a long right episode can get a negative advantage.
Here the length weighs right episodes among themselves alone: ``w = exp((1 - n / max_tokens) / temperature)``, the best
distribution over them under a KL to the policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym.plugins import Options
from agentgym.settings import Count, NonNegative, Positive
from agentgym.trainers.losses.component import policy_loss
from agentgym.trainers.losses.published.disco import separation, trust_region

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DrpoOptions(Options):
    """Keys of DRPO."""

    kind: Literal["drpo"] = "drpo"
    temperature: Positive = 0.1
    """The paper's lambda: the smaller, the more the shortest right episodes count."""
    max_tokens: Count = 1024
    """Sampled tokens of an episode at which the length reward is 0. The release takes the longest answer it allows,
    8,192; the value is ours."""
    tau: Positive = 10.0
    """Temperature of the soft maximum over wrong episodes."""
    beta: NonNegative = 1000.0
    """Weight of the constraint; its force is ``beta (KL - delta)``."""
    delta: NonNegative = 1e-4
    """KL to the old policy, in nats per token, that costs nothing."""
    kl: Literal["k1", "k3"] = "k1"
    """Estimator of that KL."""
    right_from: float = 0.5
    """Reward from which on an episode is right. Ours: the release leaves out rewards other than 0 and 1."""


def prepare_drpo(
    logprob: Tensor,
    logprob_old: Tensor,
    reward: Tensor,
    trajectory: Tensor,
    group: Tensor,
    loss_weight: Tensor,
    options: DrpoOptions,
) -> dict[str, Tensor]:
    """Return the slope of the update's loss by each token's log-probability, and the tokens' parts of it, ``[M]``."""
    import torch

    from agentgym.trainers.losses.ratios import clamped
    from agentgym.trainers.losses.whole_episodes import Episodes, undone

    episodes = Episodes(trajectory, group)
    num_tokens, is_right = episodes.num_tokens, reward >= options.right_from
    score = episodes.total(logprob) / num_tokens
    # weights relative to the shortest right episode of the group: the common factor cancels, and none overflows
    length = -num_tokens.to(logprob) / (options.max_tokens * options.temperature)
    shortest = episodes.largest_of_group(torch.where(is_right, length, -torch.inf))
    right = torch.where(is_right, (length - shortest).exp().clamp(min=torch.finfo(logprob.dtype).tiny), 0.0)
    slope, value = separation(score, right, episodes, options.tau)
    held, cost = trust_region(clamped(logprob - logprob_old), options.beta, options.delta, options.kl)
    return {
        "slope": undone(slope / num_tokens + held, loss_weight),
        "value": undone(value / num_tokens + cost, loss_weight),
    }


@policy_loss(
    "drpo",
    paper="DRPO: Efficient Reasoning via Decoupled Reward Policy Optimization",
    parity="Optimization-AI/DRPO@405f702:verl/verl/trainer/ppo/core_algos.py",
    options=DrpoOptions,
    prepare=prepare_drpo,
    clip_low=None,
    clip_high=None,
    test="tests/trainers/test_drpo.py::test_drpo",
    limits="its gradient, for max_tokens of the release's padded length",
)
def drpo(logprob: Tensor, slope: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """``-(w-mean of right s - tau log mean exp(wrong s / tau))`` per group, ``w = exp((1 - n / max_tokens) / lambda)``.

    ``s`` is the mean log-probability of an episode's n tokens. The trust region is DisCO's.
    """
    return value + slope * (logprob - logprob.detach()), logprob.detach().isnan()
