"""DART's choice of steps: the turns in which the policy was uncertain.

A long episode of a graphical interface has many turns that the policy takes without doubt. They teach little and take
most of the update's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import selection
from agentgym.credit.statistics import dense, finite_column
from agentgym.credit.table import Bools, TurnTable
from agentgym.plugins import Options
from agentgym.settings import PositiveFraction


@dataclass(frozen=True, slots=True, kw_only=True)
class UncertainTurnsOptions(Options):
    """Keys of the choice of uncertain turns."""

    kind: Literal["uncertain_turns"] = "uncertain_turns"
    share: PositiveFraction = 0.8
    """Share of a group's turns that train, those with the highest mean token entropy."""

    def idle(self) -> str:
        return "share is 1, so that all turns train" if self.share == 1 else ""


@selection(
    "uncertain_turns",
    paper="Efficient Multi-turn RL for GUI Agents via Decoupled Training and Adaptive Data Curation",
    status="reproduced",
    columns=("entropy",),
)
def uncertain_turns(table: TurnTable, options: UncertainTurnsOptions = UncertainTurnsOptions()) -> Bools:
    """Keep the ``ceil(share n)`` turns of highest entropy among the n turns of each group, ``[N]``.

    Of equal turns the earlier ones stay. Rewards and statistics are those of whole episodes. Needs the column
    ``entropy``, the mean over a turn's tokens.

    Source: DART, "Efficient Multi-turn RL for GUI Agents via Decoupled Training and Adaptive Data Curation" (the upper
    80 % of a group's steps).

    Raises:
        ConfigError: the table has no entropies.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 0, 1], [0]], group_of_trajectory=[0, 0])
        >>> table = table.with_columns(entropy=[[0.1, 0.9, 0.5], [0.7]])
        >>> uncertain_turns(table, UncertainTurnsOptions(share=0.5)).tolist()
        [False, True, False, True]
    """
    entropy = finite_column(table, "entropy", by="uncertain_turns")
    group = dense(table.group)
    order = np.lexsort((-entropy, group))
    count = np.bincount(group) if len(group) else np.zeros(0, dtype=np.int64)
    # places within the group, 0 for the highest entropy; 1e-9 for shares that are no binary fractions
    place = np.arange(len(group)) - np.repeat(np.cumsum(count) - count, count)
    keep = np.zeros(len(group), dtype=np.bool_)
    keep[order] = place < np.ceil(options.share * count - 1e-9)[group[order]]
    return keep
