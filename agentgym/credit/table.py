"""The credit library's data: turns as columns of plain arrays, one row per turn.

Estimators see (group, trajectory, turn) scalars and never tokens, so they do not care how a trainer lays its rows out.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from agentgym.types import TrajectoryGroup

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTable:
    """Turns of a batch, shape ``[N]`` each, sorted by trajectory and then by turn.

    Example (two trajectories of one group, with two turns and one turn):
        >>> table = TurnTable.from_lists(
        ...     rewards=[[0.0, 1.0], [0.5]], states=[["a", "b"], ["a"]], group_of_trajectory=[0, 0])
        >>> table.trajectory.tolist(), table.turn.tolist(), table.anchor.tolist()
        ([0, 0, 1], [0, 1, 0], [0, 1, 0])
    """

    group: Ints
    """Group of each turn's trajectory, counted from 0."""
    trajectory: Ints
    """Trajectory of each turn, counted from 0 over the batch."""
    turn: Ints
    """Position of the turn in its trajectory, counted from 0."""
    reward: Floats
    anchor: Ints
    """Anchor group: equal exactly for turns of one group taken in the same state."""
    is_valid: Bools

    @classmethod
    def from_lists(
        cls,
        *,
        rewards: Sequence[Sequence[float]],
        states: Sequence[Sequence[Hashable]] | None = None,
        is_valid: Sequence[Sequence[bool]] | None = None,
        group_of_trajectory: Sequence[int],
    ) -> TurnTable:
        """Build a table from one list per trajectory.

        Args:
            rewards: turn rewards.
            states: canonical state in which each turn was taken; without it every turn is its own anchor group.
            is_valid: whether each turn's action was well-formed and possible; all True by default.
            group_of_trajectory: group of each trajectory; trajectories of one group share task and start state.
        """
        lengths = np.array([len(row) for row in rewards], dtype=np.int64)
        trajectory = np.repeat(np.arange(len(rewards), dtype=np.int64), lengths)
        group = np.asarray(group_of_trajectory, dtype=np.int64)[trajectory]
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64) if len(rewards) else lengths
        num_turns = int(lengths.sum())
        if states is None:
            anchor = np.arange(num_turns, dtype=np.int64)
        else:
            codes: dict[tuple[int, Hashable], int] = {}
            keys = ((int(g), key) for g, row in zip(group_of_trajectory, states, strict=True) for key in row)
            anchor = np.fromiter((codes.setdefault(key, len(codes)) for key in keys), np.int64, num_turns)
        valid = [True] * num_turns if is_valid is None else [flag for row in is_valid for flag in row]
        return cls(
            group=group,
            trajectory=trajectory,
            turn=np.arange(num_turns, dtype=np.int64) - starts[trajectory],
            reward=np.array([r for row in rewards for r in row], dtype=np.float64),
            anchor=anchor,
            is_valid=np.array(valid, dtype=np.bool_),
        )

    @classmethod
    def from_groups(cls, groups: Sequence[TrajectoryGroup]) -> TurnTable:
        """Build a table from the valid members of groups: what the infrastructure spoilt is no evidence."""
        members = [(index, trajectory) for index, group in enumerate(groups) for trajectory in group.valid]
        return cls.from_lists(
            rewards=[[turn.reward for turn in trajectory.turns] for _, trajectory in members],
            states=[
                [turn.state_key if turn.state_key is not None else (index, n) for n, turn in enumerate(t.turns)]
                for index, (_, t) in enumerate(members)
            ],
            is_valid=[[turn.is_valid for turn in trajectory.turns] for _, trajectory in members],
            group_of_trajectory=[index for index, _ in members],
        )

    def __len__(self) -> int:
        return len(self.reward)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAdvantages:
    """What an estimator gives, shape ``[N]`` each, in the rows of its table."""

    advantage: Floats
    return_to_go: Floats
    anchor_group: Ints | None = None
    """None if the estimator compares no states."""
    anchor_size: Ints | None = None


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Mean and spread of a value within groups, seen from each row, shape ``[N]`` each."""

    mean: Floats
    std: Floats
    count: Ints


def group_statistics(value: Floats, group: Ints, *, ddof: int = 1) -> GroupStatistics:
    """Per-group statistics, one pass over the rows.

    Groups with ``ddof`` members or fewer get a standard deviation of 0.

    Example:
        >>> s = group_statistics(np.array([1.0, 3.0, 5.0]), np.array([0, 0, 1]))
        >>> s.mean.tolist(), s.count.tolist()
        ([2.0, 2.0, 5.0], [2, 2, 1])
    """
    if not len(value):
        return GroupStatistics(value, value, group)
    codes = np.unique(group, return_inverse=True)[1].reshape(-1)
    count = np.bincount(codes)
    mean = np.bincount(codes, weights=value) / count
    squared = np.bincount(codes, weights=(value - mean[codes]) ** 2)
    std = np.sqrt(np.where(count > ddof, squared / np.maximum(count - ddof, 1), 0.0))
    return GroupStatistics(mean[codes], std[codes], count[codes].astype(np.int64))


def returns_to_go(table: TurnTable, gamma: float) -> Floats:
    """Discounted return from each turn on: ``G_t = r_t + gamma * G_{t+1}`` within a trajectory, shape ``[N]``."""
    returns = table.reward.copy()
    if not len(table):
        return returns
    # Turns at the same distance from the end of their trajectories are one vector operation.
    is_last = np.append(table.trajectory[1:] != table.trajectory[:-1], True)
    last_index = np.flatnonzero(is_last)[table.trajectory - table.trajectory[0]]
    distance = last_index - np.arange(len(table))
    order = np.argsort(distance, kind="stable")
    bounds = np.searchsorted(distance[order], np.arange(1, int(distance.max()) + 2))
    for begin, end in pairwise(bounds.tolist()):
        rows = order[begin:end]
        returns[rows] += gamma * returns[rows + 1]
    return returns


def trajectory_returns(table: TurnTable) -> Floats:
    """Undiscounted return of each turn's trajectory, shape ``[N]``."""
    totals = np.bincount(table.trajectory, weights=table.reward) if len(table) else np.zeros(0)
    return np.asarray(totals, dtype=np.float64)[table.trajectory]
