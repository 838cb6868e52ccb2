"""The credit of turns as columns, and its conversion to one object per turn for records and reports."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from itertools import islice, pairwise
from typing import Any

import numpy as np

from agentgym.credit.table import Bools, Floats, Ints
from agentgym.errors import CorruptDataError
from agentgym.types import TrajectoryGroup, TurnCredit

GroupCredit = tuple[tuple[TurnCredit, ...], ...]
"""Credit of one group, ``[trajectory][turn]``; the tuple of a failed trajectory is empty."""
NAMES = tuple(field.name for field in fields(TurnCredit))
PER_TURN = NAMES[:-2]
PER_TOKEN = ("token_advantage", "token_keep")
NO_CREDIT = TurnCredit(shaped_reward=np.nan, return_to_go=np.nan, advantage=np.nan, loss_weight=np.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditColumns:
    """Credit of the turns of valid trajectories, in order: ``[N]`` per turn, ``[M]`` per sampled token."""

    shaped_reward: Floats
    return_to_go: Floats
    advantage: Floats
    anchor_group: Ints
    """-1 if the estimator compares no states."""
    anchor_size: Ints
    gate_open: Bools
    loss_weight: Floats
    """Weight of the turn. 0 leaves it out of the loss and its denominators; NaN: the record has no credit."""
    token_advantage: Floats | None = None
    """``[M]``, or None if all tokens of a turn have the turn's advantage."""
    token_keep: Bools | None = None
    """``[M]`` tokens that train; None if no selection chooses tokens."""
    num_tokens: Ints | None = None
    """``[N]`` number of sampled tokens of each turn; required if a column is per token."""

    def split(self, groups: Collection[TrajectoryGroup]) -> list[CreditColumns]:
        """Split the rows of all groups into views, one per group."""
        ends = np.cumsum([0, *(sum(len(t.turns) for t in group.valid) for group in groups)])
        token_ends = ends if self.num_tokens is None else np.insert(np.cumsum(self.num_tokens), 0, 0)[ends]
        names = (field.name for field in fields(CreditColumns))
        columns: dict[str, Any] = {name: column for name in names if (column := getattr(self, name)) is not None}
        return [
            CreditColumns(**{name: c[slice(*(tokens if name in PER_TOKEN else rows))] for name, c in columns.items()})
            for rows, tokens in zip(pairwise(ends), pairwise(token_ends), strict=True)
        ]


def turn_credits(groups: Collection[TrajectoryGroup], credit: CreditColumns) -> tuple[GroupCredit, ...]:
    """Return the credit of groups as records and reports hold it, ``[group][trajectory][turn]``."""
    columns = [getattr(credit, name).tolist() for name in PER_TURN]
    columns += [_by_turn(credit, getattr(credit, name)) for name in PER_TOKEN]
    turns = (TurnCredit(**dict(zip(NAMES, row, strict=True))) for row in zip(*columns, strict=True))
    return tuple(
        tuple(tuple(islice(turns, len(t.turns))) if t.status.is_evidence else () for t in group.trajectories)
        for group in groups
    )


def _by_turn(credit: CreditColumns, of_token: Floats | Bools | None) -> list[tuple[object, ...]]:
    """Split a column of sampled tokens into one tuple per turn; without a column the tuples are empty."""
    if of_token is None:
        return [()] * len(credit.advantage)
    assert credit.num_tokens is not None
    values = iter(of_token.tolist())
    return [tuple(islice(values, count)) for count in credit.num_tokens.tolist()]


def credit_columns(groups: Collection[TrajectoryGroup], credit: Collection[GroupCredit]) -> CreditColumns:
    """Return recorded credit as columns, the inverse of :func:`turn_credits`.

    Args:
        groups: the recorded groups.
        credit: the credit of each group; ``()`` for a group without credit, whose rows become NaN.

    Raises:
        CorruptDataError: the numbers of episodes or turns differ, so the credit belongs to other episodes.
    """
    given: list[TurnCredit] = []
    for group, of_group in zip(groups, credit, strict=True):
        rows = of_group or ((),) * len(group.trajectories)
        if len(rows) != len(group.trajectories):
            raise CorruptDataError(
                f"group {group.ordinal} has {len(group.trajectories)} episodes, credit of {len(rows)}"
            )
        for trajectory, row in zip(group.trajectories, rows, strict=True):
            if not trajectory.status.is_evidence:
                continue
            if row and len(row) != len(trajectory.turns):
                raise CorruptDataError(
                    f"group {group.ordinal} has an episode of {len(trajectory.turns)} turns and credit of {len(row)}"
                )
            given += row or (NO_CREDIT,) * len(trajectory.turns)
    turns = (turn for group in groups for trajectory in group.valid for turn in trajectory.turns)
    pairs = [(one, len(turn.completion.token_ids)) for one, turn in zip(given, turns, strict=True)]
    types = {name: type(getattr(NO_CREDIT, name)) for name in PER_TURN}
    columns = {name: np.array([getattr(one, name) for one in given], dtype) for name, dtype in types.items()}
    if any(one.token_advantages for one in given):
        advantages = [value for one, n in pairs for value in one.token_advantages or (one.advantage,) * n]
        columns["token_advantage"] = np.array(advantages, np.float64)
    if any(one.token_keep for one in given):
        columns["token_keep"] = np.array([flag for one, n in pairs for flag in one.token_keep or (True,) * n], np.bool_)
    return CreditColumns(**columns, num_tokens=np.array([n for _, n in pairs], np.int64))
