"""GRPO: compare each trajectory with its group.

Source: "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", outcome supervision. The
standard deviation has ``ddof=1`` and ``eps=1e-6`` as in verl's ``core_algos.py``.
"""

from __future__ import annotations

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.statistics import (
    group_statistics,
    normalised,
    per_trajectory,
    returns_to_go,
    trajectories,
    trajectory_returns,
)
from agentgym.credit.table import TurnAdvantages, TurnTable


@estimator(
    "grpo",
    paper="DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
    parity="verl-project/verl@1dda039:verl/trainer/ppo/core_algos.py",
    by_authors=False,
    compares_groups=True,
    test="tests/credit/test_golden.py::test_grpo",
)
def grpo(
    table: TurnTable, *, norm: str = "mean_std_norm", gamma: float = 1.0, invalid_penalty: float = 0.0
) -> TurnAdvantages:
    """``A_i = (S_i - mean) / (std + eps)``, the same for every turn of the trajectory.

    ``S_i`` is the trajectory's undiscounted return minus ``invalid_penalty`` for each invalid turn. In a group of one
    trajectory, or of equal returns, all advantages are 0.

    Args:
        table: the turns of the batch.
        norm: ``mean_std_norm``, or ``mean_norm`` to leave the division out (Dr.GRPO).
        gamma: discount of the reported ``return_to_go``; it does not enter the advantage.
        invalid_penalty: subtracted from the return for each invalid turn.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1.0], [0.0], [0.5], [2.0]], group_of_trajectory=[0, 0, 0, 0])
        >>> np.round(grpo(table).advantage, 6).tolist()
        [0.146385, -1.024694, -0.439155, 1.317464]
    """
    view = trajectories(table)
    penalty = per_trajectory(table, np.where(table.is_valid, 0.0, invalid_penalty))
    score = trajectory_returns(table)[view.first] - penalty
    advantage = normalised(score, group_statistics(score, view.group), norm)
    return TurnAdvantages(advantage=advantage[view.of_row], return_to_go=returns_to_go(table, gamma))
