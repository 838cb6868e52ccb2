"""Means, spreads and sums over groups, trajectories and tokens, each one pass over flat arrays.

Conventions that differ between published codes are arguments, never unified: ``ddof``, ``eps`` and the unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from agentgym.credit.table import PER_TOKEN, Floats, Ints, TurnTable
from agentgym.errors import ConfigError

FLAT = 1e-6
"""Spread below which a group counts as constant: rounding alone can leave 1e-8 among equal values, and dividing by
it would invent a signal."""

LARGE = 1e100
"""Size above which values are scaled before they are squared."""


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Mean and spread of a value within groups, seen from each row, shape ``[N]`` each."""

    mean: Floats
    std: Floats
    count: Ints


@dataclass(frozen=True, slots=True)
class Trajectories:
    """The table seen by trajectory, shape ``[I]`` each but for ``of_row``."""

    first: Ints
    """Row of each trajectory's first turn."""
    last: Ints
    of_row: Ints
    """``[N]`` index into the other arrays, for each row of the table."""
    group: Ints
    num_turns: Ints


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
    peak = float(np.abs(value).max())
    if peak > LARGE:  # squares would overflow
        of = group_statistics(value / peak, group, ddof=ddof)
        return GroupStatistics(of.mean * peak, of.std * peak, of.count)
    codes = dense(group)
    count = np.bincount(codes)
    mean = np.bincount(codes, weights=value) / count
    squared = np.bincount(codes, weights=(value - mean[codes]) ** 2)
    std = np.sqrt(np.where(count > ddof, squared / np.maximum(count - ddof, 1), 0.0))
    return GroupStatistics(mean[codes], std[codes], count[codes].astype(np.int64))


def dense(group: Ints) -> Ints:
    """Codes without gaps, ``0 .. G - 1``, in the order of the groups' numbers."""
    if not len(group):
        return group
    low, high = int(group.min()), int(group.max())
    if high - low > 4 * len(group) + 1024:
        return np.unique(group, return_inverse=True)[1].reshape(-1).astype(np.int64)
    is_there = np.zeros(high - low + 1, dtype=np.int64)
    is_there[group - low] = 1
    return (np.cumsum(is_there) - 1)[group - low]


def zscore(value: Floats, group: Ints, *, ddof: int = 1, eps: float = 1e-6) -> Floats:
    """``(x - mean) / (std + eps)`` within groups; 0 in groups that are constant or have one member.

    Example:
        >>> np.round(zscore(np.array([1.0, 0.0, 5.0]), np.array([0, 0, 1])), 4).tolist()
        [0.7071, -0.7071, 0.0]
    """
    return normalised(value, group_statistics(value, group, ddof=ddof), "mean_std_norm", eps)


def normalised(value: Floats, statistics: GroupStatistics, norm: str, eps: float = 1e-6) -> Floats:
    """``x - mean``, divided by ``std + eps`` with ``mean_std_norm``; 0 in groups that are constant."""
    centred = value - statistics.mean
    if norm == "mean_norm":
        return centred
    return np.where(statistics.std < FLAT, 0.0, centred / (statistics.std + eps))


def whiten(value: Floats, weight: Floats | Ints | None = None) -> Floats:
    """verl's ``masked_whiten``: ``(x - mean) * rsqrt(var + 1e-8)`` with ``ddof=1`` over units counted by ``weight``.

    Args:
        weight: how many units (tokens) stand behind each value; 1 each by default.

    Raises:
        ConfigError: there is exactly one unit, whose variance is not defined.

    Example:
        >>> np.round(whiten(np.array([1.0, 0.0]), np.array([2, 3])), 6).tolist()
        [1.095445, -0.730297]
    """
    units = np.ones(len(value)) if weight is None else weight.astype(np.float64)
    total = float(units.sum())
    if total == 0:
        return np.zeros_like(value)
    if total <= 1:
        raise ConfigError("whitening needs at least two units (tokens or turns) in the batch, got one")
    peak = float(np.abs(value).max())
    if peak > LARGE:  # squares would overflow; the result does not depend on the scale
        return whiten(value / peak, weight)
    mean = float((units * value).sum()) / total
    variance = float((units * (value - mean) ** 2).sum()) / (total - 1)
    return np.asarray((value - mean) / np.sqrt(variance + 1e-8), dtype=np.float64)


def require_finite(table: TurnTable, *names: str, by: str) -> None:
    """Refuse columns that hold NaN or infinite values, which would spread over whole trajectories.

    Raises:
        ConfigError: naming the component, the column and the turn.
    """
    for name in names:
        column = getattr(table, name)
        if column is None or not len(bad := np.argwhere(~np.isfinite(column))):
            continue
        at = tuple(bad[0].tolist())
        row = at[0]
        if name in PER_TOKEN and table.num_tokens is not None:
            row = int(np.searchsorted(np.cumsum(table.num_tokens), row, side="right"))
        raise ConfigError(
            f"{by}: column {name!r} is {column[at]} in group {table.group[row]}, trajectory {table.trajectory[row]}, "
            f"turn {table.turn[row]} (counted from 0), expected finite numbers; check what made it"
        )


def trajectories(table: TurnTable) -> Trajectories:
    """The table seen by trajectory."""
    starts = np.append(True, table.trajectory[1:] != table.trajectory[:-1])[: len(table)]
    first = np.flatnonzero(starts)
    num_turns = np.diff(np.append(first, len(table)))
    return Trajectories(first, first + num_turns - 1, np.cumsum(starts) - 1, table.group[first], num_turns)


def per_trajectory(table: TurnTable, value: Floats | Ints) -> Floats:
    """Sum of a turn column over each trajectory, shape ``[I]``, in the order of :func:`trajectories`."""
    view = trajectories(table)
    return np.bincount(view.of_row, weights=value, minlength=len(view.first)).astype(np.float64)


def suffix_sums(value: Floats, decay: Floats | float, is_last: np.ndarray) -> Floats:
    """``y_t = x_t + decay_t * y_{t+1}`` backwards within runs that end where ``is_last``, shape as ``value``.

    Rows at the same distance from the end of their runs are one vector operation, so the time is linear.

    Example:
        >>> suffix_sums(np.array([1.0, 1.0, 1.0]), 0.5, np.array([False, True, True])).tolist()
        [1.5, 1.0, 1.0]
    """
    result = np.array(value, dtype=np.float64)
    if not len(result):
        return result
    ends = np.flatnonzero(is_last)
    lengths = np.diff(np.concatenate([[-1], ends]))
    distance = np.repeat(ends, lengths) - np.arange(len(result))
    order = np.argsort(distance, kind="stable")
    bounds = np.searchsorted(distance[order], np.arange(1, int(distance.max()) + 2))
    factor = np.broadcast_to(np.asarray(decay, dtype=np.float64), result.shape)
    for begin, end in pairwise(bounds.tolist()):
        rows = order[begin:end]
        result[rows] += factor[rows] * result[rows + 1]
    return result


def ends_of_trajectories(table: TurnTable) -> np.ndarray:
    """True on each trajectory's last turn, shape ``[N]``."""
    return np.append(table.trajectory[1:] != table.trajectory[:-1], True)[: len(table)]


def returns_to_go(table: TurnTable, gamma: float) -> Floats:
    """Discounted return from each turn on: ``G_t = r_t + gamma * G_{t+1}`` within a trajectory, shape ``[N]``."""
    return suffix_sums(table.reward, gamma, ends_of_trajectories(table))


def trajectory_returns(table: TurnTable) -> Floats:
    """Undiscounted return of each turn's trajectory, shape ``[N]``."""
    return per_trajectory(table, table.reward)[trajectories(table).of_row]


def token_rows(table: TurnTable) -> Ints:
    """Row of each sampled token, shape ``[M]``; needs the column ``num_tokens``."""
    assert table.num_tokens is not None
    return np.repeat(np.arange(len(table)), table.num_tokens)


def mean_over_tokens(table: TurnTable, value: Floats) -> Floats:
    """Mean of a token column over each turn's tokens, shape ``[N]``; 0 for a turn without tokens."""
    assert table.num_tokens is not None
    sums = np.bincount(token_rows(table), weights=value, minlength=len(table))
    return np.asarray(sums / np.maximum(table.num_tokens, 1), dtype=np.float64)
