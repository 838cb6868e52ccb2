"""COPO: compare whole groups where the answers of a group agree, and members where they differ.

Source: "COPO: Consistency-Aware Policy Optimization". A group whose members give the same answer has equal rewards, so
GRPO learns nothing of it. COPO adds an advantage of the whole group among the groups of the batch. A weight moves from
one to the other with the entropy of the group's answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.statistics import group_statistics, normalised, per_trajectory, returns_to_go, trajectories
from agentgym.credit.table import Floats, TurnAdvantages, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Fraction, NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class CopoOptions(Options):
    """Keys of COPO."""

    kind: Literal["copo"] = "copo"
    middle: Fraction = 0.25
    """Entropy of a group's answers, as a share of the largest possible, at which both advantages weigh the same."""
    sharpness: NonNegative = 20.0
    """Growth of the local advantage's weight with that entropy; 0 weighs both the same everywhere."""


@estimator(
    "copo",
    paper="COPO: Consistency-Aware Policy Optimization",
    status="experimental",
    columns=("answer",),
    compares_groups=True,
    limits="reconstructed: the advantage of a group is its mean return's among the batch's; the weight's form is ours",
    test="tests/credit/test_copo.py::test_copo",
)
def copo(table: TurnTable, *, norm: str = "mean_std_norm", options: CopoOptions = CopoOptions()) -> TurnAdvantages:
    """Experimental (reconstructed): ``A = w A^local + (1 - w) A^global``, the same for all turns of a trajectory.

    ``A^local`` is GRPO's advantage. ``A^global = (m - mean) / (std + 1e-6)`` is that of the group's mean return m over
    the groups of the batch. ``w = sigmoid(sharpness (H - middle))``, with the entropy H of the group's final answers
    divided by its largest value, the logarithm of the number of members. A trajectory without an answer counts as one
    that nobody else gives. Needs the column ``answer``.

    A batch of one group, or of groups with equal means, has no global advantage.

    Args:
        table: the turns of the batch.
        norm: ``mean_std_norm``, or ``mean_norm`` to leave the divisions out.
        options: the weight's middle and sharpness.

    Raises:
        ConfigError: the column is missing.

    Example (the first group agrees on a right answer, the second on a wrong one):
        >>> table = TurnTable.from_lists(rewards=[[1.0], [1.0], [0.0], [0.0]], group_of_trajectory=[0, 0, 1, 1])
        >>> np.round(copo(table.with_columns(answer=[5, 5, 7, 7])).advantage, 4).tolist()
        [0.7024, 0.7024, -0.7024, -0.7024]
    """
    answer = table.column("answer", by="copo")
    view = trajectories(table)
    score = per_trajectory(table, table.reward)
    of_group = group_statistics(score, view.group)
    local = normalised(score, of_group, norm)
    first = np.unique(view.group, return_index=True)[1]
    means = of_group.mean[first]
    among = normalised(means, group_statistics(means, np.zeros_like(first)), norm)
    place = np.searchsorted(view.group[first], view.group)
    distance = options.sharpness * (answer_entropy(answer[view.last], view.group) - options.middle)
    weight = (1 + np.tanh(distance / 2)) / 2  # the sigmoid, without an exponential that overflows
    advantage = weight * local + (1 - weight) * among[place]
    return TurnAdvantages(advantage=advantage[view.of_row], return_to_go=returns_to_go(table, 1.0))


def answer_entropy(answer: np.ndarray, group: np.ndarray) -> Floats:
    """Return the entropy of each group's answers as a share of the largest possible, ``[I]``; 0 for a group of one.

    Args:
        answer: ``[I]`` code of each trajectory's answer, -1 for none, which differs from all others.
        group: ``[I]``.

    Example:
        >>> answer_entropy(np.array([5, 5, 7, -1, -1]), np.array([0, 0, 0, 1, 1])).round(4).tolist()
        [0.5794, 0.5794, 0.5794, 1.0, 1.0]
    """
    found = np.zeros(len(answer))
    for one in np.unique(group):
        members = np.flatnonzero(group == one)
        given = answer[members]
        silent = int((given < 0).sum())
        share = np.append(np.unique(given[given >= 0], return_counts=True)[1], np.ones(silent)) / len(members)
        if len(members) > 1:
            found[members] = -(share * np.log(share)).sum() / np.log(len(members))
    return found
