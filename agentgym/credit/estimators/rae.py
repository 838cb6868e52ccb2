"""RAE: role-conditioned advantages for self-play, each minus the running mean of its role.

Source: "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn Reinforcement Learning"
(``train_spiral.py``, ``spiral/utils.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.statistics import returns_to_go, turns_from_end
from agentgym.credit.table import TurnAdvantages, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Fraction, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class RaeOptions(Options):
    """Keys of RAE."""

    kind: Literal["rae"] = "rae"
    decay: Annotated[float, Range(at_least=0, below=1)] = 0.95
    gamma: Fraction = 1.0
    """Discount per turn of the same player: n of its turns before its last turn the advantage is ``A * gamma ** n``."""
    baseline_of: Literal["role", "task_role"] = "role"
    """One baseline per role (for a single game), or per task and role (column ``group_keys``)."""
    skip_zero: bool = True
    """Give turns of advantage 0 a ``loss_weight`` of 0, so that they do not enter the loss's denominator."""


@estimator(
    "rae",
    paper="SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn RL",
    parity="spiral-rl/spiral@a02d0ed:train_spiral.py",
    granularity="turn",
    limits="one baseline per role of an environment; baseline_of=task_role has one per task and role",
    columns=lambda options: ("role", *(("group_keys",) if options.baseline_of == "task_role" else ())),
)
def rae(
    table: TurnTable, memory: Mapping[str, float], options: RaeOptions = RaeOptions()
) -> tuple[TurnAdvantages, Mapping[str, float]]:
    """``A = R - b`` with the role's baseline b *before* the game, then ``b <- decay b + (1 - decay) R``.

    R is the sum of a role's rewards in its trajectory; a trajectory may contain the turns of one role or of all. Games
    update b one after the other, so the order of the table matters. The advantages are not normalised. Needs the
    column ``role``.

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
