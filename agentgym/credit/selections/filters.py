"""Filters that leave out groups without a learning signal, trajectories with void turns, and truncated trajectories.

Each docstring says which members the group's statistics are taken over (composition rule 9).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import selection
from agentgym.credit.parts import outcomes
from agentgym.credit.statistics import dense, group_statistics, per_trajectory, trajectories
from agentgym.credit.table import Bools, Floats, TurnTable
from agentgym.plugins import Options
from agentgym.settings import NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSamplingOptions(Options):
    """Keys of dynamic sampling."""

    kind: Literal["dynamic_sampling"] = "dynamic_sampling"
    metric: Literal["outcome", "return", "components"] = "outcome"
    """Metric that must vary within a group: the outcome, the sum of all reward parts, or any single part."""
    min_std: NonNegative = 0.0
    """A metric varies if its standard deviation (``ddof=0``) is above this. SimpleTIR uses 1e-3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidTurnsOptions(Options):
    """Keys of the void-turn filter."""

    kind: Literal["void_turns"] = "void_turns"
    statistics: Literal["full", "kept"] = "full"
    """``kept`` is refused (composition rule 17)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlongMaskOptions(Options):
    """Keys of overlong masking."""

    kind: Literal["overlong_mask"] = "overlong_mask"
    statistics: Literal["full", "kept"] = "full"


@selection(
    "dynamic_sampling",
    paper="DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
    parity="verl-project/verl-recipe@48ea0a7:dapo/dapo_ray_trainer.py",
    columns=lambda options: () if options.metric == "return" else ("part_values",),
)
def dynamic_sampling(table: TurnTable, options: DynamicSamplingOptions = DynamicSamplingOptions()) -> Bools:
    """Keep groups whose metric is not constant, and groups of one; return their turns ``[N]``.

    The metric is computed before shaping, because the noise of shaped rewards would keep groups in which all members
    fail. ``components`` keeps a group in which any reward part varies, as estimators that keep parts apart need
    (composition rule 8). Whole groups are dropped, so the statistics of the other groups do not change.

    Source: DAPO (dynamic sampling); verl ``recipe/dapo`` (standard deviation above 0).

    Example:
        >>> rewards = [[1], [1], [1], [0], [0], [0]]
        >>> table = TurnTable.from_lists(rewards=rewards, group_of_trajectory=[0, 0, 1, 1, 2, 2])
        >>> dynamic_sampling(table).tolist()
        [False, False, True, True, False, False]
    """
    view = trajectories(table)
    keep = np.zeros(len(view.first), dtype=np.bool_)
    for metric in _metrics(table, options.metric):
        statistics = group_statistics(metric, view.group, ddof=0)
        # The std of equal values can be about 1e-16 instead of 0; such a group must not be kept.
        keep |= statistics.std > max(options.min_std, 1e-9)
        keep |= statistics.count == 1
    return keep[view.of_row]


@selection(
    "void_turns",
    paper="SimpleTIR: End-to-End Reinforcement Learning for Multi-Turn Tool-Integrated Reasoning",
    parity="ltzheng/SimpleTIR@e7b5b44:recipe/simpletir/agent_utils.py",
    options=VoidTurnsOptions,
    columns=("is_void",),
)
def void_turns(table: TurnTable) -> Bools:
    """Keep trajectories without a void turn; return their turns ``[N]``.

    A void turn makes no call and gives no answer. Statistics are taken over the full group: the reward of a masked
    trajectory stays in mean and deviation, because leaving it out would change the advantages of the other members
    (composition rule 17). Needs the column ``is_void``.

    Source: "SimpleTIR: End-to-End Reinforcement Learning for Multi-Turn Tool-Integrated Reasoning"
    (``recipe/simpletir/agent_utils.py``).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 1], [0]], group_of_trajectory=[0, 0])
        >>> void_turns(table.with_columns(is_void=[[False, True], [False]])).tolist()
        [False, False, True]
    """
    is_void = table.column("is_void", by="void_turns")
    num_void = per_trajectory(table, is_void.astype(np.int64))
    return np.asarray((num_void == 0)[trajectories(table).of_row], dtype=np.bool_)


@selection(
    "overlong_mask",
    paper="DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
    parity="ltzheng/SimpleTIR@e7b5b44:recipe/simpletir/simpletir_ray_trainer.py",
    options=OverlongMaskOptions,
    columns=("is_truncated",),
)
def overlong_mask(table: TurnTable) -> Bools:
    """Keep trajectories that were not truncated by a limit; return their turns ``[N]``.

    Statistics are taken over the full group, as in SUPO and in DAPO's overlong filtering. Needs the column
    ``is_truncated``.

    Source: DAPO (overlong filtering) and SUPO.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1], [0]], group_of_trajectory=[0, 0])
        >>> overlong_mask(table.with_columns(is_truncated=[False, True])).tolist()
        [True, False]
    """
    is_truncated = table.column("is_truncated", by="overlong_mask")
    num_cut = per_trajectory(table, is_truncated.astype(np.int64))
    return np.asarray((num_cut == 0)[trajectories(table).of_row], dtype=np.bool_)


def _metrics(table: TurnTable, metric: str) -> list[Floats]:
    if metric == "outcome":
        return [outcomes(table)]
    if metric == "return":
        return [per_trajectory(table, table.reward)]
    part_values = table.column("part_values", by="dynamic_sampling with metric 'components'")
    return [per_trajectory(table, column) for column in part_values.T]


def members(group: np.ndarray) -> list[np.ndarray]:
    """Return the indices of each group's members in their order; groups are sorted by number."""
    codes = dense(group)
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.cumsum(np.bincount(codes))[:-1]) if len(codes) else []
