"""HGPO: compare turns that share their state and their last k states, for each k, and average over k.

Source: "Hierarchy-of-Groups Policy Optimization for Long-Horizon Agentic Tasks" and its code
(``recipe/hgpo/core_hgpo.py``). This module keeps the conventions of the code: ``ddof=0`` and ``eps=1e-6``, and levels
whose advantage is exactly 0 are left out of the average.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.estimators.gigpo import episode_advantage, penalised
from agentgym.credit.statistics import NORMS, dense, group_statistics, returns_to_go
from agentgym.credit.table import Bools, Floats, Ints, TurnAdvantages, TurnTable
from agentgym.errors import require_known
from agentgym.plugins import Options
from agentgym.settings import Natural

EPS = 1e-6
ZERO = 1e-12
"""Relative distance to the mean that counts as 0, because the last bit of a mean depends on the order of summation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HgpoOptions(Options):
    """Keys of HGPO beside those it shares with GiGPO (norm, gamma)."""

    kind: Literal["hgpo"] = "hgpo"
    history: Natural = 2
    """The paper's K: the largest number of earlier states in a context. The prompt should show as many."""
    weight_alpha: float = 1.0
    """Exponent of the level weights ``(k + 1) ** alpha``; 0 gives all levels the same weight."""
    base_group: bool = False
    """Add GiGPO's episode advantage as level 0."""
    drop_zero: bool = True
    """Leave levels whose advantage is exactly 0 out of the average, as the released code does."""


@estimator(
    "hgpo",
    paper="Hierarchy-of-Groups Policy Optimization for Long-Horizon Agentic Tasks",
    parity="zhangzf01/verl-agent@d501621:recipe/hgpo/core_hgpo.py",
    compares_groups=True,
    granularity="turn",
)
def hgpo(
    table: TurnTable,
    *,
    norm: str = "mean_std_norm",
    gamma: float = 0.95,
    invalid_penalty: float = 0.0,
    options: HgpoOptions = HgpoOptions(),
) -> TurnAdvantages:
    """``A = sum_k w_k a_k`` over context levels, ``w_k = (k+1)^alpha / (sum (k'+1)^alpha + eps)``.

    ``a_k`` compares the turn's return with the returns of those turns of its group whose last k states, the current
    one included, are the same: ``(G - mean) / (std + eps)``, or ``G - mean`` with ``mean_norm``. Contexts with one
    member are left out. A turn that is alone in its context on all levels gets an advantage of 0.

    Args:
        norm: ``mean_std_norm`` or ``mean_norm``.
        gamma: discount per turn of the returns.
        invalid_penalty: subtracted from an invalid turn's return, after discounting.
        options: levels and their weights.

    Example:
        >>> table = TurnTable.from_lists(
        ...     rewards=[[0, 0, 10], [0, 0, 0], [0, 10]],
        ...     states=[["s0", "s1", "s2"], ["s0", "s1", "s1"], ["s0", "s3"]],
        ...     group_of_trajectory=[0, 0, 0],
        ... )
        >>> np.round(hgpo(table).advantage, 4).tolist()
        [0.6521, 1.1657, 0.0, -1.4128, -0.8828, -0.7071, 0.7607, 0.0]
    """
    require_known("norm", norm, NORMS)
    step_return = penalised(returns_to_go(table, gamma), table, invalid_penalty)
    levels: list[tuple[float, Floats, Bools]] = []  # weight of the level, its advantages, and the turns that it counts
    if options.base_group:
        base = episode_advantage(table, norm=norm, invalid_penalty=invalid_penalty)
        levels.append((1.0, base, np.ones(len(table), dtype=np.bool_)))
    compared = list(compare_contexts(table, step_return, options.history + 1, norm))
    for level, (advantage, size) in enumerate(compared, start=1):
        # A context of `level` states exists from the turn level - 1 on, and needs a second turn to compare with.
        levels.append((float(level + 1) ** options.weight_alpha, advantage, (size > 1) & (table.turn >= level - 1)))
    total, weights = np.zeros(len(table)), np.zeros(len(table))
    for weight, advantage, counts in levels:
        taken = counts & (advantage != 0) if options.drop_zero else counts
        total += np.where(taken, weight * advantage, 0.0)
        weights += weight * taken
    return TurnAdvantages(
        advantage=total / (weights + EPS),  # without any level, 0 / EPS
        return_to_go=step_return,
        anchor_group=table.anchor,
        anchor_size=compared[0][1],
    )


# ------------------------------------------------------------ the fast form of a comparison in every context at once


def compare_contexts(table: TurnTable, value: Floats, depth: int, norm: str) -> Iterator[tuple[Floats, Ints]]:
    """Yield for k = 1 .. ``depth`` each turn's value compared with its context's, and the size of the context.

    The context of a turn are the turns of its group with the same last k states. All sums are over rows sorted by their
    last states, in which contexts are runs on every level, so one sort is enough.
    """
    order, states = _ordered(table, depth)
    for context in _contexts(states):
        compared, count = _level_advantage(value[order], context, norm)
        advantage, size = np.empty_like(compared), np.empty_like(count)
        advantage[order], size[order] = compared, count
        yield advantage, size


def _ordered(table: TurnTable, depth: int) -> tuple[Ints, list[Ints]]:
    """Return the order of rows by their last ``depth`` states, and these states in that order, the last one first.

    Rows sorted by their last states are sorted by any number of them: contexts are runs, and one sort is enough. Rows
    with fewer states have 0 in place of the others, and share contexts with each other alone.
    """
    states = [dense(table.anchor) + 1]
    for back in range(1, depth):
        earlier = np.roll(states[0], back)
        earlier[table.turn < back] = 0
        states.append(earlier)
    order = _order(states, base=int(states[0].max(initial=0)) + 1)
    return order, [state[order] for state in states]


def _contexts(states: Sequence[Ints]) -> Iterator[Ints]:
    """Yield ascending codes of the last k states, for each level k; rows are in their order."""
    is_new = np.zeros(len(states[0]), dtype=np.bool_)
    for state in states:
        is_new[1:] |= state[1:] != state[:-1]
        yield np.cumsum(is_new)


def _order(states: Sequence[Ints], base: int) -> Ints:
    """Return the order of rows by their states, which are from 0 to ``base - 1``; the first one counts most."""
    if base ** len(states) >= 2**63:
        return np.lexsort(tuple(reversed(states)))
    key = states[0]
    for state in states[1:]:
        key = key * base + state
    # One sort of integers takes a fifth of the time of several; "stable" is the fastest kind for them.
    return np.argsort(key, kind="stable")


def _level_advantage(value: Floats, context: Ints, norm: str) -> tuple[Floats, Ints]:
    """Return each turn's value compared with its context's, and the number of turns in the context."""
    statistics = group_statistics(value, context, ddof=0)
    scaled = value - statistics.mean
    # In place, here and below: for arrays of this size, getting new memory takes longer than the arithmetic.
    smallest, std = np.abs(statistics.mean, out=statistics.mean), statistics.std
    np.maximum(smallest, 1.0, out=smallest)
    smallest *= ZERO
    # Equal returns must give exactly 0, because drop_zero tests for it.
    scaled[np.abs(scaled) <= smallest] = 0.0
    if norm != "mean_norm":
        std += EPS
        scaled /= std
    return scaled, statistics.count
