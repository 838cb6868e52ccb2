"""M-GRPO: compare main agents with main agents, and calls of a sub-agent with other calls of that sub-agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.statistics import returns_to_go, zscore
from agentgym.credit.table import Ints, TurnAdvantages, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Fraction, Natural

MAIN = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MGrpoOptions(Options):
    """Keys of M-GRPO."""

    kind: Literal["m_grpo"] = "m_grpo"
    main_weight: Fraction = 0.5
    """Share of the main agent's outcome in the score of a sub-agent's call (our choice)."""
    max_invocations: Natural = 0
    """Largest number of calls of a sub-agent that train per trajectory, the paper's D; 0: all train."""
    seed: int = 0
    """Seed of the choice of calls that do not train where there are more than D."""


@estimator(
    "m_grpo",
    paper="Multi-Agent Deep Research: Training Multi-Agent Systems with M-GRPO",
    status="experimental",
    compares_groups=True,
    granularity="turn",
    tells_agents=True,
    columns=("role", "invocation"),
)
def m_grpo(table: TurnTable, options: MGrpoOptions = MGrpoOptions()) -> TurnAdvantages:
    """Experimental (reconstructed): GRPO by role, ``A = (R - mean) / (std + 1e-6)`` with ``ddof=1``.

    The score of the main agent (role 0) is the sum of its own turns' rewards. The score of each invocation of a
    sub-agent is ``main_weight * main + (1 - main_weight) * own``; it is compared with all invocations of its role in
    the group. If a trajectory has more than ``max_invocations`` calls of a role, a random surplus gets ``loss_weight``
    0. The paper also duplicates calls to fill a fixed batch shape, which this layout does not need. Needs the columns
    ``role`` and ``invocation``.

    Source: "Multi-Agent Deep Research: Training Multi-Agent Systems with M-GRPO" (abstract and public notes).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1, 0.2], [0, 0.4]], group_of_trajectory=[0, 0])
        >>> table = table.with_columns(role=[0, 1, 0, 1], invocation=[-1, 0, -1, 0])
        >>> np.round(m_grpo(table).advantage, 4).tolist()
        [0.7071, 0.7071, -0.7071, -0.7071]
    """
    table.require("role", "invocation", by="m_grpo")
    assert table.role is not None and table.invocation is not None
    if not len(table):
        return TurnAdvantages(advantage=table.reward, return_to_go=table.reward)
    # The unit of comparison is an agent's call: all turns of the main agent, or one invocation of a sub-agent.
    invocation = np.where(table.role == MAIN, -1, table.invocation)
    fields = np.stack([table.trajectory, table.role, invocation], axis=1)
    units, unit_of_row = np.unique(fields, axis=0, return_inverse=True)
    unit_of_row = unit_of_row.reshape(-1)
    own = np.bincount(unit_of_row, weights=table.reward, minlength=len(units))
    is_main = units[:, 1] == MAIN
    main = np.zeros(int(table.trajectory.max()) + 1)
    main[units[is_main, 0]] = own[is_main]
    score = np.where(is_main, own, options.main_weight * main[units[:, 0]] + (1 - options.main_weight) * own)
    group = np.zeros(len(units), dtype=np.int64)
    group[unit_of_row] = table.group
    # One comparison per (group, role): scores of different roles have different scales.
    advantage = zscore(score, group * (int(table.role.max()) + 1) + units[:, 1])
    weight = _chosen(units, options).astype(np.float64)
    return TurnAdvantages(
        advantage=advantage[unit_of_row], return_to_go=returns_to_go(table, 1.0), loss_weight=weight[unit_of_row]
    )


def _chosen(units: Ints, options: MGrpoOptions) -> np.ndarray:
    """Choose the units that train: at most D invocations per trajectory and role, drawn without replacement."""
    chosen = np.ones(len(units), dtype=np.bool_)
    if not options.max_invocations:
        return chosen
    rng = np.random.default_rng(options.seed)
    pairs = np.unique(units[units[:, 1] != MAIN, :2], axis=0)
    for trajectory, role in pairs.tolist():
        calls = np.flatnonzero((units[:, 0] == trajectory) & (units[:, 1] == role))
        surplus = len(calls) - options.max_invocations
        if surplus > 0:
            chosen[rng.choice(calls, size=surplus, replace=False)] = False
    return chosen
