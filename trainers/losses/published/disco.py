"""DisCO: push the scores of right episodes above those of wrong ones of their group, within a KL trust region.

Source: "DisCO: Reinforcing Large Reasoning Models with Discriminative Constrained Optimization"
(``verl/verl/trainer/ppo/core_algos.py``, ``compute_policy_loss_disco_*`` and ``compute_policy_loss_discob_*``). There
is no advantage, so a group's difficulty does not weigh it, and no clip: the KL to the old policy costs something only
above ``delta``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym.plugins import Options
from agentgym.settings import NonNegative, Positive
from agentgym.trainers.losses.component import policy_loss

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym.trainers.losses.whole_episodes import Episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoOptions(Options):
    """Keys of DisCO."""

    kind: Literal["disco"] = "disco"
    score: Literal["logprob", "ratio"] = "logprob"
    """Score of an episode: the mean log-probability of its tokens, or their mean ratio to the old policy."""
    negatives: Literal["softmax", "mean"] = "softmax"
    """Level of a group's wrong episodes: the soft maximum of their scores (DisCO), or their mean (DisCO-b)."""
    tau: Positive = 10.0
    """Temperature of the soft maximum. The paper has 10 for ``logprob`` and 1 for ``ratio``."""
    beta: NonNegative = 1000.0
    """Weight of the constraint; its force is ``beta (KL - delta)``."""
    delta: NonNegative = 1e-4
    """KL to the old policy, in nats per token, that costs nothing."""
    kl: Literal["k1", "k3"] = "k1"
    """Estimator of that KL."""
    right_from: float = 0.5
    """Reward from which on an episode is right. Ours: the release leaves out rewards other than 0 and 1."""


def separation(
    score: Tensor, right: Tensor, episodes: Episodes, tau: float, *, is_soft: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the slopes of ``-J`` by each episode's score, and each episode's part of it, ``[M]``.

    ``J`` is the mean over all groups of ``weighted mean of right scores - tau log mean exp(wrong scores / tau)``. A
    group without right or without wrong episodes counts as 0.

    Args:
        score: ``[M]`` score of each token's episode.
        right: ``[M]`` weight of a right episode, 0 for a wrong one.
        episodes: the episodes of the tokens.
        tau: temperature of the soft maximum.
        is_soft: False takes the mean of the wrong scores.
    """
    import torch

    wrong = (right == 0).to(score)
    total, num_wrong, size = (episodes.over_group(one) for one in (right, wrong, torch.ones_like(score)))
    counts = (total > 0) & (num_wrong > 0)
    top = episodes.largest_of_group(torch.where(wrong > 0, score, -torch.inf))
    top = torch.where(counts, top, 0.0)
    raised = ((score - top) * wrong / tau).exp() * wrong if is_soft else wrong
    num = episodes.over_group(raised)
    level = tau * (num / num_wrong).log() + top if is_soft else episodes.over_group(wrong * score) / num_wrong
    gap = episodes.over_group(right * score) / total - level
    slope = torch.where(counts, raised / num - right / total, 0.0) / episodes.num_groups
    return slope, torch.where(counts, -gap / size, 0.0) / episodes.num_groups


def trust_region(change: Tensor, beta: float, delta: float, kl: str) -> tuple[Tensor, Tensor]:
    """Return the slopes of ``sg[beta max(KL - delta, 0)] KL`` by each log-probability, and the tokens' parts, ``[M]``.

    Args:
        change: ``[M]`` log-probability minus the old one.
        beta, delta: weight, and KL per token that costs nothing.
        kl: the estimator, ``k1`` or ``k3``.
    """
    divergence, steepness = (-change, -change.new_ones(len(change))) if kl == "k1" else _k3(change)
    mean = divergence.mean()
    force = (beta * (mean - delta)).clamp(min=0.0) / len(change)
    return force * steepness, force * mean.expand(len(change))


def _k3(change: Tensor) -> tuple[Tensor, Tensor]:
    return change.exp() - change - 1, change.exp() - 1


def prepare_disco(
    logprob: Tensor,
    logprob_old: Tensor,
    reward: Tensor,
    trajectory: Tensor,
    group: Tensor,
    loss_weight: Tensor,
    options: DiscoOptions,
) -> dict[str, Tensor]:
    """Return the slope of the update's loss by each token's log-probability, and the tokens' parts of it, ``[M]``."""
    from agentgym.trainers.losses.ratios import clamped
    from agentgym.trainers.losses.whole_episodes import Episodes, undone

    episodes, change = Episodes(trajectory, group), clamped(logprob - logprob_old)
    num_tokens = episodes.num_tokens
    is_ratio = options.score == "ratio"
    score = episodes.total(change.exp() if is_ratio else logprob) / num_tokens
    right = (reward >= options.right_from).to(score)
    slope, value = separation(score, right, episodes, options.tau, is_soft=options.negatives == "softmax")
    held, cost = trust_region(change, options.beta, options.delta, options.kl)
    slope = slope * (change.exp() if is_ratio else 1.0) / num_tokens + held
    return {"slope": undone(slope, loss_weight), "value": undone(value / num_tokens + cost, loss_weight)}


@policy_loss(
    "disco",
    paper="DisCO: Reinforcing Large Reasoning Models with Discriminative Constrained Optimization",
    parity="Optimization-AI/DisCO@bd2b078:verl/verl/trainer/ppo/core_algos.py",
    options=DiscoOptions,
    prepare=prepare_disco,
    clip_low=None,
    clip_high=None,
    test="tests/trainers/test_disco.py::test_disco",
    limits="its gradient; the release reports tau in place of the soft maximum's value",
)
def disco(logprob: Tensor, slope: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """``-(mean right s - tau log mean exp(wrong s / tau)) + sg[beta max(KL - delta, 0)] KL`` per group.

    Groups without right or without wrong episodes add 0 to the mean over groups.
    """
    return value + slope * (logprob - logprob.detach()), logprob.detach().isnan()
