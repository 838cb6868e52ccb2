"""SALT: steps that several trajectories share get the mean of their advantages, steps that differ keep theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import modulator
from agentgym.credit.parts import Modulated
from agentgym.credit.statistics import dense, ends_of_trajectories, group_statistics
from agentgym.credit.table import Floats, Ints, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SaltOptions(Options):
    """Keys of SALT."""

    kind: Literal["salt"] = "salt"
    history: Count = 1
    """States in the key of a step, the current one included."""


@modulator(
    "salt",
    paper="SALT: Step-level Advantage Assignment for Long-horizon Agents via Trajectory Graph",
    status="experimental",
    columns=("action",),
    granularity="turn",
)
def salt(table: TurnTable, advantage: Floats, options: SaltOptions = SaltOptions()) -> Modulated:
    """Experimental (reconstructed): ``A'_t = mean of A`` over the group's steps with the same (state, action, next).

    The sum over all turns stays what it was. A step of all trajectories of a group gets the group's mean. After the
    last turn comes ``final_anchor``, or, where that is missing, a state like no other. Needs the column ``action``:
    parsed actions, not raw text. Comes after normalisation and before EMPG.

    Source: "SALT: Step-level Advantage Assignment for Long-horizon Agents via Trajectory Graph" (abstract).

    Example:
        >>> table = TurnTable.from_lists(
        ...     rewards=[[0, 1], [0, 0]], states=[["s", "t"], ["s", "t"]], group_of_trajectory=[0, 0])
        >>> table = table.with_columns(action=[[0, 1], [0, 2]])
        >>> salt(table, np.array([1.0, 1.0, -1.0, -1.0])).advantage.tolist()
        [0.0, 1.0, 0.0, -1.0]
    """
    table.require("action", by="salt")
    assert table.action is not None
    if not len(table):
        return Modulated(advantage=advantage)
    edge = _pairs(_pairs(_history(table, options.history), table.action), _next_state(table))
    return Modulated(advantage=group_statistics(advantage, _pairs(table.group, edge)).mean)


def _next_state(table: TurnTable) -> Ints:
    following = np.append(table.anchor[1:], 0)
    is_last = ends_of_trajectories(table)
    beyond = max(int(table.anchor.max()), 0 if table.final_anchor is None else int(table.final_anchor.max())) + 1
    alone = beyond + np.arange(len(table))
    final = alone if table.final_anchor is None else np.where(table.final_anchor < 0, alone, table.final_anchor)
    return np.where(is_last, final, following)


def _history(table: TurnTable, length: int) -> Ints:
    """Codes of the last ``length`` states; at a trajectory's start there are fewer, which makes them different."""
    code = dense(table.anchor)
    for back in range(1, length):
        earlier = np.full(len(table), -1, dtype=np.int64)
        rows = np.flatnonzero(table.turn >= back)
        earlier[rows] = table.anchor[rows - back]
        code = _pairs(code, earlier)
    return code


def _pairs(left: Ints, right: Ints) -> Ints:
    """Equal codes exactly for equal pairs."""
    right = dense(right)
    return dense(np.unique(dense(left) * (int(right.max()) + 1) + right, return_inverse=True)[1].reshape(-1))
