"""RAE: role-conditioned advantages for self-play, each role against its own running mean.

Source: "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn Reinforcement Learning"
(``train_spiral.py``, ``spiral/utils.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.statistics import returns_to_go
from agentgym.credit.table import Ints, TurnAdvantages, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Fraction, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class RaeOptions(Options):
    """Keys of RAE."""

    kind: Literal["rae"] = "rae"
    decay: Annotated[float, Range(at_least=0, below=1)] = 0.95
    gamma: Fraction = 1.0
    """A player's turn that is n of its own turns before its last gets ``A * gamma ** n``."""
    baseline_of: Literal["role", "task_role"] = "role"
    """One baseline per role (a single game), or per task and role (``group_keys``)."""
    skip_zero: bool = True
    """Turns of advantage 0 get ``loss_weight`` 0."""


@estimator(
    "rae",
    paper="SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn RL",
    parity="spiral-rl/spiral@a02d0ed:train_spiral.py",
    granularity="turn",
    limits="one game per run",
    columns=lambda options: ("role", *(("group_keys",) if options.baseline_of == "task_role" else ())),
)
def rae(
    table: TurnTable, memory: Mapping[str, float], options: RaeOptions = RaeOptions()
) -> tuple[TurnAdvantages, Mapping[str, float]]:
    """``A = R - b`` with b the role's baseline *before*, then ``b <- decay b + (1 - decay) R``, game by game.

    R is the sum of a role's rewards in its trajectory; a trajectory may hold one role's turns or all players'. Games
    are taken in the order of the table, which therefore matters. No normalisation follows. Needs the column ``role``.

    Example (three games, one trajectory per player):
        >>> table = TurnTable.from_lists(rewards=[[1], [-1], [1], [-1], [-1], [1]], group_of_trajectory=[0] * 6)
        >>> credited, baselines = rae(table.with_columns(role=[0, 1, 0, 1, 0, 1]), {})
        >>> np.round(credited.advantage, 4).tolist(), round(baselines["0"], 6)
        ([1.0, -1.0, 0.95, -0.95, -1.0975, 1.0975], 0.042625)
    """
    table.require("role", by="rae")
    if options.baseline_of == "task_role":
        table.require("group_keys", by="rae with baseline_of='task_role'")
    assert table.role is not None
    num_roles = int(table.role.max(initial=0)) + 1
    units, unit_of_row = np.unique(table.trajectory * num_roles + table.role, return_inverse=True)
    unit_of_row = unit_of_row.reshape(-1)
    returns = np.bincount(unit_of_row, weights=table.reward, minlength=len(units))
    group_of_unit = np.zeros(len(units), dtype=np.int64)
    group_of_unit[unit_of_row] = table.group
    updated = dict(memory)
    advantage = np.zeros(len(units))
    for index, unit in enumerate(units.tolist()):
        key = str(unit % num_roles)
        if options.baseline_of == "task_role" and table.group_keys is not None:
            key = f"{table.group_keys[int(group_of_unit[index])]}|{key}"
        before = updated.get(key, 0.0)
        advantage[index] = returns[index] - before
        updated[key] = options.decay * before + (1.0 - options.decay) * float(returns[index])
    of_row = advantage[unit_of_row] * options.gamma ** turns_from_end(unit_of_row)
    weight = np.where(of_row == 0, 0.0, 1.0) if options.skip_zero else None
    credited = TurnAdvantages(advantage=of_row, return_to_go=returns_to_go(table, 1.0), loss_weight=weight)
    return credited, updated


def turns_from_end(unit: Ints) -> Ints:
    """How many rows of the same unit follow each row, shape ``[N]``.

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
