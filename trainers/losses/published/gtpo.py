"""GTPO: spare the tokens that right and wrong answers share at their ends, and leave out answers that are too unsure.

Source: "GTPO: Trajectory-Based Policy Optimization in Large Language Models" (``gtpo/gtpo_training.py``,
``build_conflict_mask`` and ``gtpo_compute_loss``). A token is in conflict if an answer of the group with a positive
advantage and one with a negative have it at the same place, and so have all places before it, counted from the first
token, or all behind it, counted from the last. Conflict tokens of wrong answers are not pressed down, those of right
ones are lifted twice as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym.plugins import Options
from agentgym.settings import NonNegative, Positive
from agentgym.trainers.losses.component import policy_loss

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GtpoOptions(Options):
    """Keys of GTPO."""

    kind: Literal["gtpo"] = "gtpo"
    right_weight: NonNegative = 2.0
    """Weight of a conflict token of a positive advantage, once for each end."""
    most_entropy: Positive = 0.7
    """Trajectories of a higher mean entropy in nats do not train; 0.7 is about ln 2."""
    entropy_penalty: NonNegative = 0.1
    """Taken from the advantage for each nat of the trajectory's mean entropy."""
    shares_weight: bool = True
    """True divides a trajectory's loss by the length of its longer run of conflict tokens, as the release does."""


def run_of_conflict(answers: Sequence[Sequence[int]], signs: Sequence[int]) -> list[int]:
    """Return for each answer the number of its first tokens that are in conflict.

    Args:
        answers: token ids of each answer of the group.
        signs: 1, 0 or -1: the sign of each answer's advantage. Answers of 0 do not count.

    Example:
        >>> run_of_conflict([[5, 6, 7], [5, 8, 7], [9]], [1, -1, 1])
        [1, 1, 0]
    """
    runs = [0] * len(answers)
    for mine, answer in enumerate(answers):
        for place, token in enumerate(answer if signs[mine] else ()):
            same = {
                sign for other, sign in zip(answers, signs, strict=True) if place < len(other) and other[place] == token
            }
            if not {1, -1} <= same:
                break
            runs[mine] += 1
    return runs


def prepare_gtpo(
    token: Tensor, group: Tensor, trajectory: Tensor, advantage: Tensor, entropy: Tensor, options: GtpoOptions
) -> dict[str, Tensor]:
    """Return the advantage of each of the update's tokens, ``[M]``.

    The places of an answer are the sampled tokens of a trajectory, of all its turns. Its sign is that of its mean
    advantage; with credit per turn, a conflict token's weight follows its own.
    """
    import torch

    shaped = advantage.detach().clone()
    for one in set(group.tolist()):
        members = [(trajectory == each).nonzero()[:, 0] for each in sorted(set(trajectory[group == one].tolist()))]
        answers = [token[places].tolist() for places in members]
        signs = [int(advantage[places].mean().sign()) for places in members]
        forward = run_of_conflict(answers, signs)
        backward = run_of_conflict([answer[::-1] for answer in answers], signs)
        for places, first, last in zip(members, forward, backward, strict=True):
            mean_entropy = entropy[places].detach().mean()
            if mean_entropy > options.most_entropy:
                shaped[places] = 0.0
                continue
            shaped[places] -= options.entropy_penalty * mean_entropy
            weight = torch.where(advantage[places] > 0, options.right_weight, 0.0)
            shaped[places[:first]] *= weight[:first]
            shaped[places[len(places) - last :]] *= weight[len(places) - last :]
            if options.shares_weight:
                shaped[places] /= max(1, first, last)
    return {"shaped": shaped}


@policy_loss(
    "gtpo",
    paper="GTPO: Trajectory-Based Policy Optimization in Large Language Models",
    parity="winstonsmith1897/GTPO@5d33811:gtpo/gtpo_training.py",
    options=GtpoOptions,
    prepare=prepare_gtpo,
    clip_low=None,
    clip_high=None,
    aggregation="seq-mean-token-mean",
    test="tests/trainers/test_gtpo.py::test_gtpo",
    limits="gradients at a ratio of 1, as in the release: one update per step",
)
def gtpo(logprob: Tensor, shaped: Tensor) -> tuple[Tensor, Tensor]:
    """``-A' log pi`` by its gradient, where A' spares conflict tokens and leaves out unsure trajectories."""
    import torch

    ratio = (logprob - logprob.detach()).exp()  # 1, with a gradient
    return -shaped * ratio, torch.zeros_like(logprob, dtype=torch.bool)
