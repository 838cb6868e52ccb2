"""GiGPO: trajectories against their group, and turns against turns taken in the same state.

Source: "Group-in-Group Policy Optimization for LLM Agent Training", equations 3 to 8, and its official code
(``gigpo/core_gigpo.py``), whose conventions are kept: ``ddof=1``, ``eps=1e-6``, the invalid-action penalty after
discounting and on the offending turn alone, and episode statistics over turn rows by default.
"""

from __future__ import annotations

import numpy as np

from agentgym.credit.table import (
    Floats,
    GroupStatistics,
    TurnAdvantages,
    TurnTable,
    group_statistics,
    returns_to_go,
    trajectory_returns,
)

EPS = 1e-6


def gigpo(
    table: TurnTable,
    *,
    norm: str = "mean_std_norm",
    gamma: float = 0.95,
    step_weight: float = 1.0,
    statistics_unit: str = "turn",
    invalid_penalty: float = 0.0,
) -> TurnAdvantages:
    """``A = A^E + step_weight * A^S``: episode-level plus step-level advantage of each turn.

    Args:
        norm: ``mean_std_norm`` divides both parts by their group's standard deviation, ``mean_norm`` does not.
        gamma: discount per turn of the returns that anchor groups compare.
        step_weight: the paper's omega.
        statistics_unit: ``turn`` takes a group's mean and deviation over turn rows (the released code; long
            trajectories count more), ``trajectory`` over trajectories (the paper's equation 3).
        invalid_penalty: subtracted from an invalid turn's episode score and return (the released scripts use 0.1).

    Example:
        >>> table = TurnTable.from_lists(
        ...     rewards=[[0, 0, 10], [0, 0, 0], [0, 10]],
        ...     states=[["s0", "s1", "s2"], ["s0", "s1", "s1"], ["s0", "s3"]],
        ...     group_of_trajectory=[0, 0, 0],
        ... )
        >>> np.round(gigpo(table, norm="mean_norm").advantage, 3).tolist()
        [6.6, 10.083, 3.75, -12.425, -9.417, -9.417, 7.075, 3.75]
    """
    penalty = invalid_penalty * ~table.is_valid
    score = trajectory_returns(table) - penalty
    step_return = returns_to_go(table, gamma) - penalty
    episode = _episode_statistics(table, score, statistics_unit)
    # A group of a single row keeps its score: the reference sets mean 0 and deviation 1 there.
    alone = episode.count == 1
    episode_advantage = np.where(alone, score, _normalised(score, episode, norm))
    anchors = group_statistics(step_return, table.anchor)
    step_advantage = np.where(anchors.count == 1, 0.0, _normalised(step_return, anchors, norm))
    return TurnAdvantages(
        advantage=episode_advantage + step_weight * step_advantage,
        return_to_go=step_return,
        anchor_group=table.anchor,
        anchor_size=anchors.count,
    )


def _episode_statistics(table: TurnTable, score: Floats, unit: str) -> GroupStatistics:
    if unit == "turn":
        return group_statistics(score, table.group)
    first = table.turn == 0
    # The penalty is the row's own; a trajectory stands for itself by its return without it.
    per_trajectory = group_statistics(trajectory_returns(table)[first], table.group[first])
    row_of_trajectory = np.cumsum(first) - 1
    return GroupStatistics(
        per_trajectory.mean[row_of_trajectory],
        per_trajectory.std[row_of_trajectory],
        per_trajectory.count[row_of_trajectory],
    )


def _normalised(value: Floats, statistics: GroupStatistics, norm: str) -> Floats:
    centred = value - statistics.mean
    if norm == "mean_norm":
        return centred
    # Rounding alone can leave a deviation near 1e-8 among equal values; dividing by it would invent a signal.
    return np.where(statistics.std < EPS, 0.0, centred / (statistics.std + EPS))
