"""GiGPO: compare trajectories within their group, and turns with the turns taken in the same state.

Source: "Group-in-Group Policy Optimization for LLM Agent Training", equations 3 to 8, and its official code
(``gigpo/core_gigpo.py``). This module keeps the conventions of the code: ``ddof=1`` and ``eps=1e-6``; the penalty of an
invalid action is subtracted after discounting, from that turn alone; episode statistics are taken over turn rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from agentgym.credit.anchors import similarity_anchors
from agentgym.credit.component import estimator
from agentgym.credit.statistics import (
    GroupStatistics,
    dense,
    group_statistics,
    normalised,
    returns_to_go,
    trajectories,
    trajectory_returns,
)
from agentgym.credit.table import Floats, TurnAdvantages, TurnTable
from agentgym.errors import require_known
from agentgym.plugins import Options
from agentgym.settings import Range

EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class GigpoOptions(Options):
    """Keys of GiGPO beside those it shares with others (norm, gamma, step_weight, statistics_unit)."""

    kind: Literal["gigpo"] = "gigpo"
    anchors: Literal["exact", "similarity"] = "exact"
    """Turns share an anchor group if their state keys are equal (``exact``), or if their observations are similar by
    at least ``similarity_threshold`` (``similarity``, which needs the column ``observation``)."""
    similarity_threshold: Annotated[float, Range(above=0, below=1)] = 0.95
    revisits: bool = True
    """False: only a trajectory's first visit to a state enters the statistics, so a loop is not compared with itself.
    A state that only one trajectory visited then forms no anchor group."""


@estimator(
    "gigpo",
    paper="Group-in-Group Policy Optimization for LLM Agent Training",
    parity="zhangzf01/verl-agent@d501621:gigpo/core_gigpo.py",
    compares_groups=True,
    granularity="turn",
    columns=lambda options: ("observation",) if options.anchors == "similarity" else (),
    test="tests/credit/test_golden.py::test_gigpo_mean_std_norm",
)
def gigpo(
    table: TurnTable,
    *,
    norm: str = "mean_std_norm",
    gamma: float = 0.95,
    step_weight: float = 1.0,
    statistics_unit: str = "turn",
    invalid_penalty: float = 0.0,
    options: GigpoOptions = GigpoOptions(),
) -> TurnAdvantages:
    """``A = A^E + step_weight * A^S``: episode-level plus step-level advantage of each turn, shape ``[N]``.

    Args:
        norm: ``mean_std_norm`` divides both parts by their group's standard deviation, ``mean_norm`` does not.
        gamma: discount per turn of the returns that anchor groups compare.
        step_weight: the paper's omega.
        statistics_unit: ``turn`` takes a group's mean and deviation over turn rows, as the released code does, so long
            trajectories count more. ``trajectory`` takes them over trajectories (the paper's equation 3). Each counts
            with the score of its first turn, which includes the penalty if that turn is invalid.
        invalid_penalty: subtracted from an invalid turn's episode score and return (the released scripts use 0.1).
        options: how anchor groups are formed, and whether revisits count.

    Raises:
        ConfigError: anchors by similarity without the column ``observation``.

    Example:
        >>> table = TurnTable.from_lists(
        ...     rewards=[[0, 0, 10], [0, 0, 0], [0, 10]],
        ...     states=[["s0", "s1", "s2"], ["s0", "s1", "s1"], ["s0", "s3"]],
        ...     group_of_trajectory=[0, 0, 0],
        ... )
        >>> np.round(gigpo(table, norm="mean_norm").advantage, 3).tolist()
        [6.6, 10.083, 3.75, -12.425, -9.417, -9.417, 7.075, 3.75]
    """
    if options.anchors == "similarity":
        observation = table.column("observation", by="gigpo with anchors by similarity")
        table = replace(table, anchor=similarity_anchors(observation, table.group, options.similarity_threshold))
    # After discounting: the penalty must not lower the returns of the turns before the invalid one.
    step_return = penalised(returns_to_go(table, gamma), table, invalid_penalty)
    peers = _anchor_statistics(table, step_return, options.revisits)
    # A state that occurs once has nothing to be compared with: the turn keeps its episode-level advantage alone.
    step_advantage = normalised(step_return, peers, norm)
    step_advantage[peers.count == 1] = 0.0
    step_advantage *= step_weight
    advantage = episode_advantage(table, norm=norm, statistics_unit=statistics_unit, invalid_penalty=invalid_penalty)
    advantage += step_advantage
    return TurnAdvantages(
        advantage=advantage,
        return_to_go=step_return,
        anchor_group=table.anchor,
        anchor_size=peers.count,
    )


def episode_advantage(
    table: TurnTable, *, norm: str, statistics_unit: str = "turn", invalid_penalty: float = 0.0
) -> Floats:
    """Return GiGPO's A^E, shape ``[N]``: the trajectory's return compared with its group."""
    score = penalised(trajectory_returns(table), table, invalid_penalty)
    episode = _episode_statistics(table, score, statistics_unit)
    advantage = normalised(score, episode, norm)
    is_alone = episode.count == 1
    advantage[is_alone] = score_alone(score[is_alone], norm)
    return advantage


def penalised(value: Floats, table: TurnTable, invalid_penalty: float) -> Floats:
    """Subtract the penalty from the values of invalid turns, shape ``[N]``."""
    return value - invalid_penalty * ~table.is_valid if invalid_penalty else value


def score_alone(score: Floats, norm: str) -> Floats:
    """Return the episode advantage in a group of one, where the released code uses mean 0 and deviation 1."""
    return score / (1.0 + EPS) if norm == "mean_std_norm" else score


def _episode_statistics(table: TurnTable, score: Floats, unit: str) -> GroupStatistics:
    require_known("statistics_unit", unit, ("turn", "trajectory"))
    if unit == "turn":
        return group_statistics(score, table.group)
    view = trajectories(table)
    of = group_statistics(score[view.first], view.group)
    return GroupStatistics(of.mean[view.of_row], of.std[view.of_row], of.count[view.of_row])


def _anchor_statistics(table: TurnTable, value: Floats, revisits: bool) -> GroupStatistics:
    if revisits or not len(table):
        return group_statistics(value, table.anchor)
    anchor = dense(table.anchor)
    num_anchors = int(anchor.max()) + 1
    # One key per (trajectory, state). np.unique returns the first row of each key, which is the first visit.
    first_visit = np.unique(table.trajectory * num_anchors + anchor, return_index=True)[1]
    of = group_statistics(value[first_visit], anchor[first_visit])
    # `of` has a row per first visit. Every other row of an anchor group reads the statistics of one of them.
    row_of_anchor = np.zeros(num_anchors, dtype=np.int64)
    row_of_anchor[anchor[first_visit]] = np.arange(len(first_visit))
    row = row_of_anchor[anchor]
    return GroupStatistics(of.mean[row], of.std[row], of.count[row])
