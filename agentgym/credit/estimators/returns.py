"""REINFORCE without a baseline, for a loss that subtracts a baseline of its own."""

from __future__ import annotations

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.statistics import (
    dense,
    group_statistics,
    per_trajectory,
    returns_to_go,
    trajectories,
    trajectory_returns,
)
from agentgym.credit.table import TurnAdvantages, TurnTable

FLAT = 1e-8
LEAST_STD = 0.05
"""Standard deviation, as a share of the group's largest return, below which returns are not divided."""


@estimator(
    "returns",
    paper="Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning",
    status="reproduced",
)
def returns(table: TurnTable, *, norm: str = "mean_std_norm", invalid_penalty: float = 0.0) -> TurnAdvantages:
    """``A_i = S_i``, or ``S_i / std`` of the group, the same for every turn of the trajectory.

    ``S_i`` is the trajectory's return minus ``invalid_penalty`` for each invalid turn. No mean is subtracted, because
    VCPO's ``baseline`` does that with a baseline computed from the policy's gradients (composition rule 19). The
    standard deviation has ``ddof=0`` as in VCPO's release. Returns that are equal in their group are not divided, nor
    those that differ by less than a twentieth: without a baseline they would all become large.

    Args:
        table: the turns of the batch.
        norm: ``mean_std_norm`` divides by the standard deviation, ``mean_norm`` does not.
        invalid_penalty: subtracted from the return for each invalid turn.

    Source: "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning" (REINFORCE).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1.0], [0.0], [3.0, 1.0]], group_of_trajectory=[0, 0, 1])
        >>> returns(table).advantage.tolist()
        [2.0, 0.0, 4.0, 4.0]
    """
    view = trajectories(table)
    penalty = per_trajectory(table, np.where(table.is_valid, 0.0, invalid_penalty))
    score = trajectory_returns(table)[view.first] - penalty
    std = group_statistics(score, view.group, ddof=0).std
    codes = dense(view.group)
    largest = np.zeros(int(codes.max(initial=-1)) + 1)
    np.maximum.at(largest, codes, np.abs(score))
    is_divided = (std > FLAT) & (std >= LEAST_STD * largest[codes])
    scaled = np.where(is_divided, score / np.maximum(std, FLAT), score) if norm == "mean_std_norm" else score
    return TurnAdvantages(advantage=scaled[view.of_row], return_to_go=returns_to_go(table, 1.0))
