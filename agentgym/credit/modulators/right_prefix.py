"""SCOPE's split of a failure: the turns before its first wrong one are not to blame.

A judge names the first wrong turn (``judge.grades=faults``). Group-relative estimators give all turns of a failed
episode the same negative advantage, the right ones too, so the policy unlearns what it did well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import modulator
from agentgym.credit.parts import Modulated
from agentgym.credit.table import Floats, TurnTable
from agentgym.plugins import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class RightPrefixOptions(Options):
    """Settings of the split, of which there are none."""

    kind: Literal["right_prefix"] = "right_prefix"


@modulator(
    "right_prefix",
    paper="Step-wise Correction for On-Policy Exploration (SCOPE)",
    status="experimental",
    options=RightPrefixOptions,
    columns=("is_faulty",),
    limits="the prefix gets no blame; its continuation from the first wrong turn is strategy.branching retry with "
    "pivot=judge, by the policy itself and not by a teacher",
)
def right_prefix(table: TurnTable, advantage: Floats) -> Modulated:
    """Leave turns with a negative advantage out of the loss if they came before their trajectory's first wrong turn.

    The first wrong turn and all after it keep their advantage, and so do trajectories without a wrong turn. Needs the
    column ``is_faulty``.

    Source: "Step-wise Correction for On-Policy Exploration" (SCOPE; the idea, the form is ours).

    Raises:
        ConfigError: the column is missing.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 0, 0], [0, 1]], group_of_trajectory=[0, 0])
        >>> table = table.with_columns(is_faulty=[[False, True, False], [False, False]])
        >>> right_prefix(table, np.array([-0.5, -0.5, -0.5, 0.5, 0.5])).loss_weight.tolist()
        [0.0, 1.0, 1.0, 1.0, 1.0]
    """
    is_faulty = table.column("is_faulty", by="right_prefix")
    first = np.full(int(table.trajectory.max(initial=-1)) + 1, -1, dtype=np.int64)
    faulty = np.flatnonzero(is_faulty)[::-1]  # the first one is written last
    first[table.trajectory[faulty]] = table.turn[faulty]
    is_prefix = table.turn < first[table.trajectory]
    return Modulated(advantage=advantage, loss_weight=np.where(is_prefix & (advantage < 0), 0.0, 1.0))
