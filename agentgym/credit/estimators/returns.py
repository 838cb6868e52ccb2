"""REINFORCE without a baseline: each trajectory's return, for a baseline that is subtracted later."""

from __future__ import annotations

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.statistics import (
    group_statistics,
    per_trajectory,
    returns_to_go,
    trajectories,
    trajectory_returns,
)
from agentgym.credit.table import TurnAdvantages, TurnTable

FLAT = 1e-8


@estimator(
    "returns",
    paper="Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning",
    status="reproduced",
)
def returns(table: TurnTable, *, norm: str = "mean_std_norm", invalid_penalty: float = 0.0) -> TurnAdvantages:
    """``A_i = S_i``, or ``S_i / std`` of the group, the same for every turn of the trajectory.

    ``S_i`` is the trajectory's return minus ``invalid_penalty`` for each invalid turn. No mean is subtracted: use it
    with VCPO's ``baseline``, which is computed from the policy's gradients. The standard deviation has ``ddof=0``, as
    in VCPO's release, and a group of equal returns is not divided.

    Args:
        norm: ``mean_std_norm`` divides, ``mean_norm`` does not.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1.0], [0.0], [3.0, 1.0]], group_of_trajectory=[0, 0, 1])
        >>> returns(table).advantage.tolist()
        [2.0, 0.0, 4.0, 4.0]
    """
    view = trajectories(table)
    penalty = per_trajectory(table, np.where(table.is_valid, 0.0, invalid_penalty))
    score = trajectory_returns(table)[view.first] - penalty
    std = group_statistics(score, view.group, ddof=0).std
    scaled = np.where(std > FLAT, score / np.maximum(std, FLAT), score) if norm == "mean_std_norm" else score
    return TurnAdvantages(advantage=scaled[view.of_row], return_to_go=returns_to_go(table, 1.0))
