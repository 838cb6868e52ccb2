"""Reward parts of a table: sums by role, and adding to or replacing rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from agentgym.credit.statistics import ends_of_trajectories, per_trajectory, trajectories
from agentgym.credit.table import Bools, Floats, TurnTable
from agentgym.types import RewardRole


def role_reward(table: TurnTable, role: RewardRole) -> Floats:
    """Sum each turn's reward parts with the given role, shape ``[N]``.

    Raises:
        ConfigError: the table has no parts.
    """
    part_values = table.column("part_values", by=f"reward by role {role.value!r}")
    return np.asarray(part_values[:, [r is role for r in table.part_roles]].sum(axis=1), dtype=np.float64)


def outcome_reward(table: TurnTable) -> Floats:
    """Return each turn's outcome reward, shape ``[N]``: its outcome parts, or its whole reward if it has no parts."""
    return table.reward if table.part_values is None else role_reward(table, RewardRole.OUTCOME)


def outcomes(table: TurnTable) -> Floats:
    """Return the outcome of each trajectory, shape ``[I]``."""
    return per_trajectory(table, outcome_reward(table))


def on_last_turn(table: TurnTable, per_trajectory_value: Floats) -> Floats:
    """Place a value per trajectory ``[I]`` on its last turn, with 0 elsewhere, shape ``[N]``."""
    return np.where(ends_of_trajectories(table), per_trajectory_value[trajectories(table).of_row], 0.0)


def add_reward(table: TurnTable, name: str, role: RewardRole, value: Floats) -> TurnTable:
    """Add ``value`` per turn ``[N]`` to the rewards, as a separate part ``name`` if the table has parts.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 1]], group_of_trajectory=[0])
        >>> add_reward(table, "fee", RewardRole.COST, np.array([-0.5, 0.0])).reward.tolist()
        [-0.5, 1.0]
    """
    if table.part_values is None:
        return replace(table, reward=table.reward + value)
    return replace(
        table,
        reward=table.reward + value,
        part_names=(*table.part_names, name),
        part_roles=(*table.part_roles, role),
        part_values=np.column_stack([table.part_values, value]),
    )


def replace_reward(table: TurnTable, name: str, value: Floats) -> TurnTable:
    """Replace all rewards by ``value`` ``[N]``, as a single outcome part ``name``."""
    return replace(
        table,
        reward=value,
        part_names=(name,),
        part_roles=(RewardRole.OUTCOME,),
        part_values=np.asarray(value, dtype=np.float64)[:, None],
    )


def with_part_values(table: TurnTable, part_values: Floats) -> TurnTable:
    """Give the reward parts new values ``[N, P]``; the rewards become their sums."""
    return replace(table, part_values=part_values, reward=part_values.sum(axis=1))


# -------------------------------------------------------------------------------------------------- what a shaper gives


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """The result of a shaper: the table with its new rewards, and diagnostics."""

    table: TurnTable
    gate_open: Bools | None = None
    """``[N]``, for shapers with gates: True if all gates of the turn's trajectory were open."""
    diagnostics: Mapping[str, float] = field(default_factory=dict)


# ----------------------------------------------------------------------------------------------- what a modulator gives


@dataclass(frozen=True, slots=True, kw_only=True)
class Modulated:
    """The result of a modulator: new advantages, and weights in the loss if the modulator sets any."""

    advantage: Floats
    """``[N]`` advantage of each turn."""
    token_advantage: Floats | None = None
    """``[M]`` advantage of each token, if the modulator works per token; ``advantage`` is then its mean per turn."""
    loss_weight: Floats | None = None
    """``[N]`` factor of the turn's weight in the loss; None means 1 everywhere."""
    token_keep: Bools | None = None
    """``[M]`` tokens that train; None means all."""
