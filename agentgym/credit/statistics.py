"""Means, standard deviations and sums over groups, trajectories and tokens, vectorised over flat arrays.

Published implementations differ in ``ddof``, in ``eps`` and in the unit they average over. These are arguments here, so
that each estimator can reproduce the numbers of its paper's code.

Shapes: N turns (rows of the table), I trajectories, M sampled tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from agentgym.credit.inputs import PER_TOKEN
from agentgym.credit.table import Floats, Ints, TurnTable
from agentgym.errors import ConfigError, require_known

FLAT = 1e-6
"""Standard deviation below which a group counts as constant. Rounding can leave 1e-8 among equal values, and dividing
by it would turn rounding errors into advantages of about 1."""

LARGE = 1e100
"""Absolute value above which numbers are scaled down before they are squared, because the square would overflow."""


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Mean, standard deviation and size of each row's group, shape ``[N]`` each."""

    mean: Floats
    std: Floats
    count: Ints


@dataclass(frozen=True, slots=True)
class Trajectories:
    """Index arrays from rows to trajectories and back. All have shape ``[I]`` except ``of_row``."""

    first: Ints
    """Row of each trajectory's first turn; ``last`` is that of its last turn."""
    last: Ints
    of_row: Ints
    """``[N]`` index of each row's trajectory in the other arrays."""
    group: Ints
    num_turns: Ints


def group_statistics(value: Floats, group: Ints, *, ddof: int = 1) -> GroupStatistics:
    """Compute mean, standard deviation and size of each group.

    Args:
        value: ``[N]`` one number per row.
        group: ``[N]`` any integer per group.
        ddof: 1 divides the squared deviations by ``n - 1``, 0 by ``n``. Groups of at most ``ddof`` rows get a standard
            deviation of 0.

    Returns:
        the statistics of each row's group, ``[N]`` each.

    Example:
        >>> s = group_statistics(np.array([1.0, 3.0, 5.0]), np.array([0, 0, 1]))
        >>> s.mean.tolist(), s.count.tolist()
        ([2.0, 2.0, 5.0], [2, 2, 1])
    """
    if not len(value):
        return GroupStatistics(value, value, group)
    peak = max(float(value.max()), -float(value.min()))
    if peak > LARGE:  # mean and std scale with the values, so they can be computed on smaller ones
        of = group_statistics(value / peak, group, ddof=ddof)
        return GroupStatistics(of.mean * peak, of.std * peak, of.count)
    codes = lookup_codes(group)
    count = np.bincount(codes)
    mean = np.bincount(codes, weights=value) / np.maximum(count, 1)
    of_row = mean.take(codes)
    deviation = value - of_row
    # In place, here and below: for arrays of this size, getting new memory takes longer than the arithmetic.
    deviation *= deviation
    squared = np.bincount(codes, weights=deviation)
    std = np.sqrt(np.where(count > ddof, squared / np.maximum(count - ddof, 1), 0.0))
    return GroupStatistics(of_row, std.take(codes), count.take(codes))


def group_sizes(group: Ints) -> Ints:
    """Return the number of rows in each row's group, shape ``[N]``.

    Example:
        >>> group_sizes(np.array([7, 7, 2])).tolist()
        [2, 2, 1]
    """
    codes = lookup_codes(group)
    return np.bincount(codes)[codes] if len(codes) else codes


def lookup_codes(group: Ints) -> Ints:
    """Renumber groups from 0 in the order of their numbers, with gaps where that is cheaper, shape ``[N]``.

    The largest number is at most about four times the number of rows, so a table by group is small.
    """
    if not len(group):
        return group
    low, high = int(group.min()), int(group.max())
    # A lookup table is linear in the range of the numbers, sorting is O(N log N): take the table if the range is small.
    if high - low > 4 * len(group) + 1024:
        return np.unique(group, return_inverse=True)[1].reshape(-1)
    return group - low if low else group


def dense(group: Ints) -> Ints:
    """Renumber groups as ``0 .. G - 1`` without gaps, in the order of their numbers, shape ``[N]``."""
    codes = lookup_codes(group)
    if not len(codes):
        return codes
    is_there = np.zeros(int(codes.max()) + 1, dtype=np.int64)
    is_there[codes] = 1
    return (np.cumsum(is_there) - 1)[codes]


def zscore(value: Floats, group: Ints, *, ddof: int = 1, eps: float = 1e-6) -> Floats:
    """Return ``(x - mean) / (std + eps)`` within groups, shape ``[N]``; 0 in constant groups and groups of one.

    Example:
        >>> np.round(zscore(np.array([1.0, 0.0, 5.0]), np.array([0, 0, 1])), 4).tolist()
        [0.7071, -0.7071, 0.0]
    """
    return normalised(value, group_statistics(value, group, ddof=ddof), "mean_std_norm", eps)


NORMS = ("mean_std_norm", "mean_norm")


def normalised(value: Floats, statistics: GroupStatistics, norm: str, eps: float = 1e-6) -> Floats:
    """Return ``x - mean`` (``mean_norm``) or ``(x - mean) / (std + eps)`` (``mean_std_norm``), shape ``[N]``.

    Constant groups get 0 with ``mean_std_norm``.

    Raises:
        UnknownNameError: ``norm`` is something else.
    """
    require_known("norm", norm, NORMS)
    centred = value - statistics.mean
    if norm == "mean_norm":
        return centred
    centred /= statistics.std + eps
    centred[statistics.std < FLAT] = 0.0
    return centred


def whiten(value: Floats, weight: Floats | Ints | None = None) -> Floats:
    """Normalise to mean 0 and variance 1 over the batch: ``(x - mean) / sqrt(var + 1e-8)`` with ``ddof=1``.

    This is verl's ``masked_whiten`` without its mask.

    Args:
        value: ``[N]`` numbers.
        weight: ``[N]`` how often each value counts, for example its number of tokens; 1 by default.

    Raises:
        ConfigError: the weights sum to 1, and the variance of a single value is not defined.

    Example:
        >>> np.round(whiten(np.array([1.0, 0.0]), np.array([2, 3])), 6).tolist()
        [1.095445, -0.730297]
    """
    units = np.ones(len(value)) if weight is None else weight.astype(np.float64)
    total = float(units.sum())
    if total == 0:
        return np.zeros_like(value)
    if total <= 1:
        raise ConfigError(
            "whitening needs at least two units (tokens or turns) in the batch, got one: use a larger batch, or switch "
            "whitening off"
        )
    peak = float(np.abs(value).max())
    if peak > LARGE:  # the result does not depend on the scale of the values
        return whiten(value / peak, weight)
    mean = float((units * value).sum()) / total
    variance = float((units * (value - mean) ** 2).sum()) / (total - 1)
    return np.asarray((value - mean) / np.sqrt(variance + 1e-8), dtype=np.float64)


def finite_column(table: TurnTable, name: str, *, by: str) -> Any:
    """Return a column that a component reads, after a check that it is there and finite.

    Raises:
        ConfigError: the column is missing, or a value is NaN or infinite.
    """
    column = table.column(name, by=by)
    require_finite(table, name, by=by)
    return column


def require_finite(table: TurnTable, *names: str, by: str) -> None:
    """Check that columns are finite: one NaN would spread to all advantages of its trajectory or group.

    Args:
        table: the turns of the batch.
        names: names of columns; those that the table lacks are skipped.
        by: name of the component that reads the columns, for the error.

    Raises:
        ConfigError: a value is NaN or infinite; the message names the component, the column and the turn.
    """
    for name in names:
        column = getattr(table, name)
        if column is None or (is_finite := np.isfinite(column)).all():
            continue
        at = tuple(np.argwhere(~is_finite)[0].tolist())
        row = at[0]
        if name in PER_TOKEN and table.num_tokens is not None:
            row = int(np.searchsorted(np.cumsum(table.num_tokens), row, side="right"))
        raise ConfigError(
            f"{by}: column {name!r} is {column[at]} in group {table.group[row]}, trajectory {table.trajectory[row]}, "
            f"turn {table.turn[row]} (counted from 0), expected finite numbers; check the code that computes the column"
        )


def trajectories(table: TurnTable) -> Trajectories:
    """Return the first and last row, the group and the length of each trajectory.

    Rows of a trajectory are adjacent, which :class:`~agentgym.credit.table.TurnTable` guarantees.
    """
    starts = np.append(True, table.trajectory[1:] != table.trajectory[:-1])[: len(table)]
    first = np.flatnonzero(starts)
    num_turns = np.diff(np.append(first, len(table)))
    of_row = np.repeat(np.arange(len(first)), num_turns)
    return Trajectories(first, first + num_turns - 1, of_row, table.group[first], num_turns)


def per_trajectory(table: TurnTable, value: Floats | Ints, view: Trajectories | None = None) -> Floats:
    """Sum a turn column ``[N]`` over each trajectory, shape ``[I]``, in the order of :func:`trajectories`.

    A caller that has the ``view`` of the table's trajectories may pass it.
    """
    view = trajectories(table) if view is None else view
    return np.bincount(view.of_row, weights=value, minlength=len(view.first)).astype(np.float64)


def suffix_sums(value: Floats, decay: Floats | float, is_last: np.ndarray) -> Floats:
    """Compute ``y_t = x_t + decay_t * y_{t+1}`` backwards within runs, shape as ``value``.

    With turn rewards and the discount as ``decay`` this gives returns; with TD errors and ``gamma * lam`` it gives GAE.

    Args:
        value: the x of each row; rows of a run are adjacent.
        decay: one number, or one for each row.
        is_last: True on the last row of each run, where y is x.

    Example:
        >>> suffix_sums(np.array([1.0, 1.0, 1.0]), 0.5, np.array([False, True, True])).tolist()
        [1.5, 1.0, 1.0]
    """
    result = np.array(value, dtype=np.float64)
    if not len(result):
        return result
    ends = np.flatnonzero(is_last)
    lengths = np.diff(ends, prepend=-1)
    # The recursion is sequential within a run but independent between runs. All rows at the same distance from the end
    # of their runs are therefore computed at once, and the loop is as long as the longest run. With the longest runs
    # first, those that reach a distance are the first ones.
    ends = ends[np.argsort(-lengths, kind="stable")]
    num_reaching = len(ends) - np.cumsum(np.bincount(lengths))
    is_constant = np.ndim(decay) == 0
    for distance in range(1, int(lengths.max())):
        rows = ends[: num_reaching[distance]] - distance
        factor = decay if is_constant else decay[rows]  # type: ignore[index]
        result[rows] += factor * result[rows + 1]
    return result


def ends_of_trajectories(table: TurnTable) -> np.ndarray:
    """Mark each trajectory's last turn, shape ``[N]``."""
    return np.append(table.trajectory[1:] != table.trajectory[:-1], True)[: len(table)]


def returns_to_go(table: TurnTable, gamma: float) -> Floats:
    """Return the discounted return from each turn on, ``G_t = r_t + gamma * G_{t+1}``, shape ``[N]``."""
    return suffix_sums(table.reward, gamma, ends_of_trajectories(table))


def trajectory_returns(table: TurnTable) -> Floats:
    """Return the undiscounted return of each turn's trajectory, shape ``[N]``."""
    view = trajectories(table)
    return per_trajectory(table, table.reward, view)[view.of_row]


def token_rows(table: TurnTable) -> Ints:
    """Return the row of each sampled token, shape ``[M]``; needs the column ``num_tokens``."""
    assert table.num_tokens is not None
    return np.repeat(np.arange(len(table)), table.num_tokens)


def mean_over_tokens(table: TurnTable, value: Floats) -> Floats:
    """Average a token column ``[M]`` over each turn's tokens, shape ``[N]``; 0 for a turn without tokens."""
    assert table.num_tokens is not None
    sums = np.bincount(token_rows(table), weights=value, minlength=len(table))
    return np.asarray(sums / np.maximum(table.num_tokens, 1), dtype=np.float64)


def turns_from_end(unit: Ints) -> Ints:
    """Return for each row the number of later rows of the same unit, shape ``[N]``.

    Example:
        >>> turns_from_end(np.array([0, 1, 0, 1, 0])).tolist()
        [2, 1, 1, 0, 0]
    """
    order = np.argsort(unit, kind="stable")
    count = np.bincount(unit) if len(unit) else np.zeros(0, dtype=np.int64)
    ends = np.cumsum(count)
    result = np.empty(len(unit), dtype=np.int64)
    result[order] = ends[unit[order]] - 1 - np.arange(len(unit))
    return result
