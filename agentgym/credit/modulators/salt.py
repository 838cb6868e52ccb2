"""SALT: average the advantages of steps that several trajectories share; steps that differ keep theirs."""

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
    """Number of states in the key of a step, the current one included."""


@modulator(
    "salt",
    paper="SALT: Step-level Advantage Assignment for Long-horizon Agents via Trajectory Graph",
    status="experimental",
    columns=("action", "final_anchor"),
    granularity="turn",
)
def salt(table: TurnTable, advantage: Floats, options: SaltOptions = SaltOptions()) -> Modulated:
    """Experimental (reconstructed): ``A'_t = mean of A`` over the group's steps with the same (state, action, next).

    A step that all trajectories of a group share gets the group's mean. The sum of advantages over all turns does not
    change. The state after the last turn is ``final_anchor``; without it, it counts as different from every other
    state. Needs the column ``action``: codes of parsed actions, not of raw text. EMPG must run after SALT.

    Source: "SALT: Step-level Advantage Assignment for Long-horizon Agents via Trajectory Graph" (abstract).

    Example:
        >>> table = TurnTable.from_lists(
        ...     rewards=[[0, 1], [0, 0]], states=[["s", "t"], ["s", "t"]], group_of_trajectory=[0, 0])
        >>> table = table.with_columns(action=[[0, 1], [0, 2]])
        >>> salt(table, np.array([1.0, 1.0, -1.0, -1.0])).advantage.tolist()
        [0.0, 1.0, 0.0, -1.0]
    """
    action = table.column("action", by="salt")
    if not len(table):
        return Modulated(advantage=advantage)
    edge = _pairs(_pairs(_history(table, options.history), action), _next_state(table))
    return Modulated(advantage=group_statistics(advantage, _pairs(table.group, edge)).mean)


def _next_state(table: TurnTable) -> Ints:
    following = np.append(table.anchor[1:], 0)
    is_last = ends_of_trajectories(table)
    beyond = max(int(table.anchor.max()), 0 if table.final_anchor is None else int(table.final_anchor.max())) + 1
    # One new code per row: final states that are unknown must equal neither a known state nor each other.
    alone = beyond + np.arange(len(table))
    final = alone if table.final_anchor is None else np.where(table.final_anchor < 0, alone, table.final_anchor)
    return np.where(is_last, final, following)


def _history(table: TurnTable, length: int) -> Ints:
    """Return codes of the last ``length`` states, ``[N]``; a shorter history at a trajectory's start is different."""
    code = dense(table.anchor)
    for back in range(1, length):
        earlier = np.full(len(table), -1, dtype=np.int64)
        rows = np.flatnonzero(table.turn >= back)
        earlier[rows] = table.anchor[rows - back]
        code = _pairs(code, earlier)
    return code


def _pairs(left: Ints, right: Ints) -> Ints:
    """Return codes that are equal exactly for equal pairs, ``[N]``."""
    right = dense(right)
    # Dense codes are below N, so their product cannot overflow.
    return dense(np.unique(dense(left) * (int(right.max()) + 1) + right, return_inverse=True)[1].reshape(-1))
