"""GRPO: each trajectory against the others of its group.

Source: DeepSeekMath, "Group Relative Policy Optimization", outcome supervision; standard deviation with ``ddof=1`` and
``eps=1e-6`` as in verl's ``core_algos.py``.
"""

from __future__ import annotations

import numpy as np

from agentgym.credit.table import TurnAdvantages, TurnTable, group_statistics, returns_to_go, trajectory_returns

EPS = 1e-6


def grpo(
    table: TurnTable, *, norm: str = "mean_std_norm", gamma: float = 1.0, invalid_penalty: float = 0.0
) -> TurnAdvantages:
    """``A_i = (S_i - mean) / (std + eps)``, the same for every turn of the trajectory.

    ``S_i`` is the trajectory's return minus ``invalid_penalty`` for each invalid turn. A group of one trajectory, or
    of equal returns, gets advantages of 0.

    Args:
        norm: ``mean_std_norm``, or ``mean_norm`` to leave the division out (Dr.GRPO).
        gamma: discount of the reported ``return_to_go``; it does not enter the advantage.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1.0], [0.0], [0.5], [2.0]], group_of_trajectory=[0, 0, 0, 0])
        >>> np.round(grpo(table).advantage, 6).tolist()
        [0.146385, -1.024694, -0.439155, 1.317464]
    """
    penalty = np.bincount(table.trajectory, weights=invalid_penalty * ~table.is_valid) if len(table) else np.zeros(0)
    score = trajectory_returns(table) - penalty[table.trajectory]
    first = table.turn == 0
    statistics = group_statistics(score[first], table.group[first])
    centred = score[first] - statistics.mean
    if norm == "mean_std_norm":
        centred = np.where(statistics.std < EPS, 0.0, centred / (statistics.std + EPS))
    # Rows are sorted by trajectory, so the first turns are in the order of the trajectories.
    row_of_trajectory = np.cumsum(first) - 1
    return TurnAdvantages(advantage=centred[row_of_trajectory], return_to_go=returns_to_go(table, gamma))
