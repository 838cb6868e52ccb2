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
from agentgym.credit.table import Floats, Ints, TurnAdvantages, TurnTable
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
    # All sums are in an order in which the rows of a context follow each other, on every level.
    order, states = _ordered(table, options.history + 1)
    value, turn = step_return[order], table.turn[order]
    total, weights = np.zeros(len(table)), np.zeros(len(table))
    if options.base_group:
        base = episode_advantage(table, norm=norm, invalid_penalty=invalid_penalty)[order]
        # Level 0 has the weight (0 + 1) ** alpha = 1.
        counts = (base != 0) if options.drop_zero else np.ones(len(table), dtype=np.bool_)
        total += np.where(counts, base, 0.0)
        weights += counts
    sizes = np.zeros(len(table), dtype=np.int64)
    for level, context in enumerate(_contexts(states), start=1):
        compared, count = _level_advantage(value, context, norm)
        if level == 1:
            sizes = count
        counts = count > 1
        counts &= turn >= level - 1
        if options.drop_zero:
            counts &= compared != 0
        weight = float(level + 1) ** options.weight_alpha
        compared *= weight
        compared *= counts
        total += compared
        weights += weight * counts
    total /= weights + EPS  # without any level, 0 / EPS
    advantage, anchor_size = np.empty_like(total), np.empty_like(sizes)
    advantage[order], anchor_size[order] = total, sizes
    return TurnAdvantages(
        advantage=advantage, return_to_go=step_return, anchor_group=table.anchor, anchor_size=anchor_size
    )


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
