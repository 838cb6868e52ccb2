"""GCPO: reward a tool where the members of a group that used it did better than those that did not.

Source: "GeometryZero: Improving Geometry Solving for LLM with Group Contrastive Policy Optimization" (GCPO; abstract
and summaries). Its tool is an auxiliary construction in a geometry problem. A reward for every use teaches needless
ones. Group contrastive masking compares the members with and without it, and turns the reward's sign by the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import shaper
from agentgym.credit.parts import Shaped, add_reward, on_last_turn, outcomes
from agentgym.credit.statistics import per_trajectory, trajectories
from agentgym.credit.table import TurnTable
from agentgym.plugins import Options
from agentgym.settings import Count, NonNegative
from agentgym.types import RewardRole


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpoOptions(Options):
    """Keys of GCPO's reward."""

    off_at_0 = "bonus"
    kind: Literal["gcpo"] = "gcpo"
    bonus: NonNegative = 0.1
    """Reward of a member that calls a tool where it helped, and minus that where it harmed."""
    margin: NonNegative = 0.0
    """Difference of mean outcomes above which a tool helped, and below minus which it harmed."""
    least_calls: Count = 1
    """Calls from which on a member used the tool."""


@shaper(
    "gcpo",
    paper="GeometryZero: Improving Geometry Solving for LLM with Group Contrastive Policy Optimization",
    status="experimental",
    columns=("num_calls", "part_values"),
    limits="reconstructed: bonus and margin are ours; without the paper's reward for length",
    test="tests/credit/test_gcpo.py::test_gcpo",
)
def gcpo(table: TurnTable, options: GcpoOptions = GcpoOptions()) -> Shaped:
    """Experimental (reconstructed): add ``bonus sign(m_with - m_without)`` to members of a group that call a tool.

    ``m_with`` and ``m_without`` are the mean outcomes of the members that call a tool at least ``least_calls`` times,
    and of the others. A difference within the margin, and a group of one kind alone, give no reward. It is paid on the
    last turn. Needs the column ``num_calls``.

    Example (calls helped in this group):
        >>> table = TurnTable.from_lists(rewards=[[1.0], [0.0], [0.0]], group_of_trajectory=[0, 0, 0])
        >>> gcpo(table.with_columns(num_calls=[[2], [1], [0]])).table.reward.tolist()
        [1.1, 0.1, 0.0]
    """
    view = trajectories(table)
    uses = per_trajectory(table, table.column("num_calls", by="gcpo")) >= options.least_calls
    outcome = outcomes(table)
    paid = np.zeros(len(uses))
    for group in np.unique(view.group):
        mine = view.group == group
        if not (uses[mine].any() and (~uses[mine]).any()):
            continue
        gain = outcome[mine & uses].mean() - outcome[mine & ~uses].mean()
        if abs(gain) > options.margin:
            paid[mine & uses] = np.copysign(options.bonus, gain)
    return Shaped(table=add_reward(table, "gcpo", RewardRole.PROCESS, on_last_turn(table, paid)))
