"""Credit of purified episodes (CLEANER): the episode that was purified does not train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import modulator
from agentgym.credit.parts import Modulated
from agentgym.credit.table import Floats, TurnTable
from agentgym.plugins import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class PurifiedOptions(Options):
    """No settings."""

    kind: Literal["purified"] = "purified"


@modulator(
    "purified",
    paper="CLEANER: Self-Purified Trajectories Boost Agentic Reinforcement Learning",
    status="experimental",
    limits="the original still counts in the group's statistics, where the release drops it",
    columns=("parent",),
    needs_copies=True,
)
def purified(table: TurnTable, advantage: Floats, options: PurifiedOptions = PurifiedOptions()) -> Modulated:
    """Give ``loss_weight`` 0 to all turns of a trajectory that another one purifies, which names it in ``parent``.

    The purified trajectory trains whole, including the turns that it copied. Advantages do not change.

    Raises:
        ConfigError: the column ``parent`` is missing.

    Example (trajectory 1 purifies trajectory 0):
        >>> table = TurnTable.from_lists(rewards=[[0, 0, 1], [0, 1], [0]], group_of_trajectory=[0, 0, 0])
        >>> table = table.with_columns(parent=[-1, -1, -1, 0, 0, -1])
        >>> purified(table, np.array([0.5, 0.5, 0.5, 0.5, 0.5, -1.0])).loss_weight.tolist()
        [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    """
    parent = table.column("parent", by="purified")
    is_replaced = np.isin(table.trajectory, parent[parent >= 0])
    return Modulated(advantage=advantage, loss_weight=np.where(is_replaced, 0.0, 1.0))
