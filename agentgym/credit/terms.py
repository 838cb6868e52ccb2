"""An advantage taken apart into what it compares: which number of a turn, with whose, and how much that weighs.

For estimators that are a weighted sum of comparisons. The summands are computed anew from the formulas, so that they
add up to the estimator's advantage only if both are right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from agentgym.credit.compose import CreditResult
from agentgym.credit.config import CreditConfig
from agentgym.credit.estimators.gigpo import EPS, score_alone
from agentgym.credit.estimators.hgpo import EPS as HGPO_EPS
from agentgym.credit.estimators.hgpo import ZERO
from agentgym.credit.statistics import (
    FLAT,
    GroupStatistics,
    dense,
    group_statistics,
    per_trajectory,
    returns_to_go,
    trajectories,
    trajectory_returns,
)
from agentgym.credit.table import Bools, Floats, Ints, TurnTable, codes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One summand ``weight * value`` of each turn's advantage; arrays have shape ``[N]``."""

    name: str
    span: int
    """0 compares episodes of the group; k compares turns of the group whose last k states are the same."""
    weight: Floats
    """0 where the estimator leaves the summand out."""
    value: Floats
    """``own - mean``, in units of ``std`` if the estimator divides."""
    own: Floats
    """The return that is compared."""
    mean: Floats
    std: Floats | None
    """None if the estimator does not divide by it."""
    count: Ints
    """How many are compared, this one among them; 0 where there is no such comparison."""
    unit: Literal["episode", "turn"] = "turn"
    """What is counted."""


def advantage_terms(result: CreditResult, config: CreditConfig) -> tuple[Term, ...]:
    """The summands of the estimator's advantages, before modulators; empty for an estimator that is no such sum.

    They hold for turns of groups that no selection has narrowed.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 1], [0]], states=[["a", "b"], ["a"]], group_of_trajectory=[0, 0])
        >>> from agentgym.credit.compose import credit_turns
        >>> config = CreditConfig(estimator="gigpo", norm="mean_norm")
        >>> for term in advantage_terms(credit_turns(table, config), config):
        ...     print(term.name, np.round(term.value, 3).tolist(), term.count.tolist())
        episode [0.333, 0.333, -0.667] [3, 3, 3]
        same state [0.475, 0.0, -0.475] [2, 1, 2]
    """
    take_apart = _TERMS.get(config.estimator)
    if take_apart is None or not len(result.table):
        return ()
    table = result.table
    if result.anchor_size.any():  # anchors by likeness are the estimator's own
        table = replace(table, anchor=result.anchor_group)
    return take_apart(table, config)


def _grpo(table: TurnTable, config: CreditConfig) -> tuple[Term, ...]:
    return (_of_trajectories(table, norm=config.norm, penalty=config.shared.invalid_penalty),)


def _dr_grpo(table: TurnTable, config: CreditConfig) -> tuple[Term, ...]:
    return (_of_trajectories(table, norm="mean_norm"),)


def _rloo(table: TurnTable, config: CreditConfig) -> tuple[Term, ...]:
    term = _of_trajectories(table, norm="mean_norm")
    return (replace(term, weight=term.count / np.maximum(term.count - 1, 1)),)


def _of_trajectories(table: TurnTable, *, norm: str, penalty: float = 0.0) -> Term:
    view = trajectories(table)
    score = per_trajectory(table, table.reward) - per_trajectory(table, np.where(table.is_valid, 0.0, penalty))
    of = group_statistics(score, view.group)
    seen = GroupStatistics(of.mean[view.of_row], of.std[view.of_row], of.count[view.of_row])
    return replace(_term("episode", 0, score[view.of_row], seen, norm), unit="episode")


def _gigpo(table: TurnTable, config: CreditConfig) -> tuple[Term, ...]:
    shared = config.shared
    penalty = shared.invalid_penalty * ~table.is_valid
    episode = _episode(table, config)
    value = returns_to_go(table, shared.gamma) - penalty
    visits = np.ones(len(table), dtype=np.bool_) if config.estimator_options.revisits else _first_visits(table)
    peers = _statistics_of(value, dense(table.anchor), visits)
    state = _term("same state", 1, value, peers, shared.norm)
    alone = state.count == 1
    weight = np.full(len(table), shared.step_weight)
    return episode, replace(state, weight=weight, value=np.where(alone, 0.0, state.value))


def _episode(table: TurnTable, config: CreditConfig) -> Term:
    """GiGPO's episode-level part; a group of one row keeps its score."""
    score = trajectory_returns(table) - config.shared.invalid_penalty * ~table.is_valid
    unit: Literal["episode", "turn"] = "turn"
    if config.statistics_unit == "turn":
        seen = group_statistics(score, table.group)
    else:
        unit = "episode"
        view = trajectories(table)
        of = group_statistics(score[view.first], view.group)
        seen = GroupStatistics(of.mean[view.of_row], of.std[view.of_row], of.count[view.of_row])
    term = replace(_term("episode", 0, score, seen, config.norm), unit=unit)
    alone = term.count == 1
    value = np.where(alone, score_alone(score, config.norm), term.value)
    return replace(term, value=value, mean=np.where(alone, 0.0, term.mean))


def _first_visits(table: TurnTable) -> Bools:
    first = np.zeros(len(table), dtype=np.bool_)
    pairs = np.stack([table.trajectory, table.anchor], axis=1)
    first[np.unique(pairs, axis=0, return_index=True)[1]] = True
    return first


def _statistics_of(value: Floats, codes: Ints, members: Bools) -> GroupStatistics:
    """Statistics over ``members`` alone, seen from every row; each group has a member."""
    of = group_statistics(value[members], codes[members])
    row = np.zeros(int(codes.max()) + 1, dtype=np.int64)
    row[codes[members]] = np.arange(int(members.sum()))
    at = row[codes]
    return GroupStatistics(of.mean[at], of.std[at], of.count[at])


def _hgpo(table: TurnTable, config: CreditConfig) -> tuple[Term, ...]:
    options, shared = config.estimator_options, config.shared
    value = returns_to_go(table, shared.gamma) - shared.invalid_penalty * ~table.is_valid
    terms = [_level(table, value, level, config) for level in range(1, options.history + 2)]
    weights = [float(term.span + 1) ** options.weight_alpha * _counts(term, options) for term in terms]
    if options.base_group:
        terms.insert(0, _episode(table, replace(config, statistics_unit="turn")))
        weights.insert(0, np.where(terms[0].value != 0, 1.0, 0.0) if options.drop_zero else np.ones(len(table)))
    total = np.sum(weights, axis=0) + HGPO_EPS
    return tuple(replace(term, weight=weight / total) for term, weight in zip(terms, weights, strict=True))


def _level(table: TurnTable, value: Floats, level: int, config: CreditConfig) -> Term:
    """Turns against those with the same last ``level`` states; the earliest turns have no such context."""
    states = table.anchor.tolist()
    has_context = table.turn >= level - 1
    contexts = [
        tuple(states[row - level + 1 : row + 1]) if there else (-1, row)
        for row, there in enumerate(has_context.tolist())
    ]
    peers = group_statistics(value, codes_of(list(zip(has_context.tolist(), contexts, strict=True))), ddof=0)
    name = "same state" if level == 1 else f"same last {level} states"
    term = _term(name, level, value, peers, config.norm, is_flat_zero=False)
    near = ZERO * np.maximum(np.abs(peers.mean), 1.0)
    exact = np.where(np.abs(value - peers.mean) <= near, 0.0, term.value)
    return replace(term, value=exact, count=np.where(has_context, peers.count, 0))


def _counts(term: Term, options: Any) -> Bools:
    """Where a level is part of HGPO's average."""
    is_kept = term.value != 0 if options.drop_zero else np.ones(len(term.value), dtype=np.bool_)
    return np.asarray((term.count > 1) & is_kept, dtype=np.bool_)


def _term(name: str, span: int, own: Floats, peers: GroupStatistics, norm: str, *, is_flat_zero: bool = True) -> Term:
    centred = own - peers.mean
    divides = norm == "mean_std_norm"
    value = centred / (peers.std + EPS) if divides else centred
    if divides and is_flat_zero:
        value = np.where(peers.std < FLAT, 0.0, value)
    return Term(
        name=name, span=span, weight=np.ones(len(own)), value=value, own=own, mean=peers.mean,
        std=peers.std if divides else None, count=peers.count,
    )  # fmt: skip


_TERMS: dict[str, Callable[[TurnTable, CreditConfig], tuple[Term, ...]]] = {
    "dr_grpo": _dr_grpo,
    "gigpo": _gigpo,
    "grpo": _grpo,
    "hgpo": _hgpo,
    "loop": _rloo,
    "rloo": _rloo,
}
