"""PACS: train the policy as a classifier of its own episodes, with their outcomes as labels.

Source: "Implicit Actor Critic Coupling via a Supervised Learning Framework for RLVR" (``src/pacs/pacs_core_algos.py``,
``compute_pacs_loss``). The logit of an episode is its scaled log-ratio to the old policy minus the mean of the others
of its group, and the loss is its cross-entropy. The policy is actor and critic at once: the logit is a score, and its
gradient that of the policy.
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
class PacsOptions(Options):
    """Keys of PACS."""

    kind: Literal["pacs"] = "pacs"
    beta: Positive = 1.0
    """Factor of an episode's score. The released scripts have 1 and 2."""
    score: Literal["ratio", "logprob"] = "ratio"
    """Score of an episode: the sum of its tokens' log-ratios to the old policy, or their mean log-probability."""
    baseline: Literal["others", "none"] = "others"
    """``others``: the mean score of the group's other episodes is subtracted."""
    balanced: bool = True
    """Give right and wrong episodes of a group the same total weight; a group of one kind keeps the weights 1."""
    right_from: float = 0.5
    """Reward from which on an episode is right. The value is ours: the release has rewards 0 and 1 alone."""


def prepare_pacs(
    logprob: Tensor,
    logprob_old: Tensor,
    reward: Tensor,
    trajectory: Tensor,
    group: Tensor,
    loss_weight: Tensor,
    options: PacsOptions,
) -> dict[str, Tensor]:
    """Return the slope of the update's loss by each token's log-probability, and the tokens' parts of it, ``[M]``.

    Both are divided by the tokens' weights, which the loss multiplies by. The slope goes through all members of a
    group: a better episode also lowers the logits of the others.
    """
    import torch

    from agentgym.trainers.losses.whole_episodes import Episodes, undone

    episodes = Episodes(trajectory, group)
    is_right = reward >= options.right_from
    label, one, num_tokens = is_right.to(logprob), torch.ones_like(logprob), episodes.num_tokens
    scale = options.beta * (one if options.score == "ratio" else one / num_tokens)
    score = scale * episodes.total(logprob - logprob_old if options.score == "ratio" else logprob)
    size = episodes.over_group(one)
    num_others = (size - 1).clamp(min=1)
    has_baseline = options.baseline == "others"
    logit = score - (episodes.over_group(score) - score) / num_others if has_baseline else score
    num_right = episodes.over_group(label)
    balance = size / (2 * torch.where(is_right, num_right, size - num_right))
    weight = torch.where((num_right > 0) & (num_right < size), balance, 1.0) if options.balanced else one
    error = weight * (logit.sigmoid() - label) / episodes.num_episodes
    slope = error - (episodes.over_group(error) - error) / num_others if has_baseline else error
    entropy = weight * torch.nn.functional.softplus((1 - 2 * label) * logit) / episodes.num_episodes
    return {"slope": undone(slope * scale, loss_weight), "value": undone(entropy / num_tokens, loss_weight)}


@policy_loss(
    "pacs",
    paper="Implicit Actor Critic Coupling via a Supervised Learning Framework for RLVR",
    parity="ritzz-ai/PACS@bbe1dc6:src/pacs/pacs_core_algos.py",
    options=PacsOptions,
    prepare=prepare_pacs,
    clip_low=None,
    clip_high=None,
    test="tests/trainers/test_pacs.py::test_pacs",
)
def pacs(logprob: Tensor, slope: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """``mean w BCE(sigma(psi), right)`` with ``psi = s - mean of the others' s``, ``s = beta log pi(y) / pi_old(y)``.

    Groups of one kind train too; set ``zero_variance_filter=off`` to keep them.
    """
    return value + slope * (logprob - logprob.detach()), logprob.detach().isnan()
