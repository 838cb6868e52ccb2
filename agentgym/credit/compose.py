"""From a configuration to the credit of every turn: one estimator, chosen by name, checked when the config is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.gigpo import gigpo
from agentgym.credit.grpo import grpo
from agentgym.credit.table import TurnAdvantages, TurnTable
from agentgym.errors import ConfigError
from agentgym.types import TrajectoryGroup, TurnCredit


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditConfig:
    """Which estimator, with what settings."""

    estimator: Literal["grpo", "gigpo"] = "gigpo"
    norm: Literal["mean_std_norm", "mean_norm"] = "mean_std_norm"
    gamma: float = 0.95
    step_weight: float = 1.0
    """GiGPO's weight of the step-level part."""
    statistics_unit: Literal["turn", "trajectory"] = "turn"
    """GiGPO's unit of the episode-level mean and deviation."""
    invalid_penalty: float = 0.0
    """Subtracted for an invalid turn (GiGPO: from that turn alone; GRPO: from the trajectory's return)."""

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ConfigError(f"gamma must be between 0 and 1, got {self.gamma}")
        if self.invalid_penalty < 0:
            raise ConfigError(f"invalid_penalty must be at least 0, got {self.invalid_penalty}")

    def check_group_size(self, group_size: int) -> None:
        """Refuse what cannot be: a group-relative estimator needs company (composition rule 2)."""
        if group_size < 2:
            raise ConfigError(
                f"estimator {self.estimator!r} compares the members of a group, so group_size must be at least 2, "
                f"got {group_size}"
            )


def _grpo(table: TurnTable, config: CreditConfig) -> TurnAdvantages:
    return grpo(table, norm=config.norm, gamma=config.gamma, invalid_penalty=config.invalid_penalty)


def _gigpo(table: TurnTable, config: CreditConfig) -> TurnAdvantages:
    return gigpo(
        table,
        norm=config.norm,
        gamma=config.gamma,
        step_weight=config.step_weight,
        statistics_unit=config.statistics_unit,
        invalid_penalty=config.invalid_penalty,
    )


ESTIMATORS: dict[str, Callable[[TurnTable, CreditConfig], TurnAdvantages]] = {"grpo": _grpo, "gigpo": _gigpo}

GroupCredit = tuple[tuple[TurnCredit, ...], ...]
"""Credit of one group: a tuple per trajectory, empty where the infrastructure failed; an entry per turn."""


def assign_credit(groups: Sequence[TrajectoryGroup], config: CreditConfig) -> tuple[GroupCredit, ...]:
    """Credit every turn of every valid trajectory.

    Returns:
        one :data:`GroupCredit` per group, in order.
    """
    table = TurnTable.from_groups(groups)
    credited = ESTIMATORS[config.estimator](table, config)
    turns = iter(_turn_credits(table, credited))
    return tuple(
        tuple(
            tuple(next(turns) for _ in trajectory.turns) if trajectory.status.is_evidence else ()
            for trajectory in group.trajectories
        )
        for group in groups
    )


def _turn_credits(table: TurnTable, credited: TurnAdvantages) -> list[TurnCredit]:
    none = np.full(len(table), -1, dtype=np.int64)
    anchor_group = none if credited.anchor_group is None else credited.anchor_group
    anchor_size = none + 1 if credited.anchor_size is None else credited.anchor_size
    columns = zip(
        table.reward.tolist(),
        credited.return_to_go.tolist(),
        credited.advantage.tolist(),
        anchor_group.tolist(),
        anchor_size.tolist(),
        strict=True,
    )
    return [
        TurnCredit(shaped_reward=reward, return_to_go=value, advantage=advantage, anchor_group=group, anchor_size=size)
        for reward, value, advantage, group, size in columns
    ]
