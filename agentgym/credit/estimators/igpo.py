"""IGPO: credit each turn with the increase in the probability of the reference answer.

Source: "Information Gain-based Policy Optimization: A Simple and Effective Approach for Multi-Turn LLM Agents" and its
code (``verl/trainer/ppo/core_algos.py``, ``train.sh``, changelog of February 2026).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.parts import on_last_turn
from agentgym.credit.statistics import ends_of_trajectories, group_statistics, per_trajectory, suffix_sums, trajectories
from agentgym.credit.table import Floats, Ints, TurnAdvantages, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Fraction, Natural

EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class IgpoOptions(Options):
    """Keys of IGPO."""

    kind: Literal["igpo"] = "igpo"
    normalisation: Literal["separate", "joint"] = "separate"
    """``separate``: gains and outcomes have their own statistics (the released train script). ``joint``: they share
    them (the default of the released code)."""
    gamma: Fraction = 1.0
    curriculum_steps: Natural = 0
    """Training steps over which the outcome's weight grows from 0.5 to 1 and the gain's falls from 1 to 0.5; 0: no
    curriculum, both weights are 1."""


def igpo(
    table: TurnTable, *, normalisation: str = "separate", gamma: float = 1.0, progress: float | None = None
) -> TurnAdvantages:
    """``A_t = z_t + gamma A_{t+1}``: z is a turn's information gain or, on the last turn, the outcome.

    Both are normalised within the group: ``z = (x - mean) / (std + 1e-6)`` with ``std = sqrt(var + 1e-8)``, ``ddof=0``,
    and a std of 1 for a single value. The outcome is the trajectory's whole reward, so the reward must not contain the
    gain. A turn whose gain is not finite (NaN: not defined) adds nothing of its own.

    Args:
        table: the turns, with the column ``info_gain`` that the shaper ``information_gain`` computes.
        normalisation: ``separate`` normalises gains and outcomes separately, ``joint`` together.
        gamma: discount per turn.
        progress: completed share of the curriculum, in [0, 1]; None leaves both weights at 1.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 0, 1], [0, 0]], group_of_trajectory=[0, 0])
        >>> table = table.with_columns(info_gain=[[0.7, 0.5, np.nan], [-0.2, np.nan]])
        >>> np.round(igpo(table).advantage, 4).tolist()
        [2.3822, 1.4319, 1.0, -2.3822, -1.0]
    """
    info_gain = table.column("info_gain", by="igpo (composition rule 10: it needs a reference answer)")
    gain_weight, outcome_weight = (1.0, 1.0) if progress is None else (1.0 - 0.5 * progress, 0.5 + 0.5 * progress)
    is_defined = np.isfinite(info_gain)
    rows = np.flatnonzero(is_defined)
    view = trajectories(table)
    gain = gain_weight * info_gain[rows]
    outcome = outcome_weight * per_trajectory(table, table.reward)
    if normalisation == "joint":
        both = _normalised(np.append(gain, outcome), np.append(table.group[rows], view.group))
        gain, outcome = both[: len(gain)], both[len(gain) :]
    else:
        gain, outcome = _normalised(gain, table.group[rows]), _normalised(outcome, view.group)
    own = on_last_turn(table, outcome)
    own[rows] += gain
    is_last = ends_of_trajectories(table)
    raw = table.reward + np.where(is_defined, info_gain, 0.0)
    return TurnAdvantages(advantage=suffix_sums(own, gamma, is_last), return_to_go=suffix_sums(raw, gamma, is_last))


def _normalised(value: Floats, group: Ints) -> Floats:
    statistics = group_statistics(value, group, ddof=0)
    # hypot(std, 1e-4) is sqrt(var + 1e-8) without squaring a large std.
    std = np.where(statistics.count <= 1, 1.0, np.hypot(statistics.std, 1e-4))
    return np.asarray((value - statistics.mean) / (std + EPS), dtype=np.float64)


@estimator(
    "igpo",
    paper="Information Gain-based Policy Optimization: A Simple and Effective Approach for Multi-Turn LLM Agents",
    parity="debajoycs98/IGPO@745078b:verl/trainer/ppo/core_algos.py",
    compares_groups=True,
    keeps_parts=True,
    granularity="turn",
)
def igpo_at(table: TurnTable, options: IgpoOptions, step: int) -> TurnAdvantages:
    """Run :func:`igpo` with the curriculum's weights at a training step."""
    progress = min(1.0, step / options.curriculum_steps) if options.curriculum_steps else None
    return igpo(table, normalisation=options.normalisation, gamma=options.gamma, progress=progress)
