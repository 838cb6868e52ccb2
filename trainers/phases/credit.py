"""The credit of a step's groups: each environment has its own components and its own memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym.credit.columns import split_columns
from agentgym.credit.compose import CreditResult, credit_groups
from agentgym.credit.state import CreditState
from agentgym.trainers.critics.columns import ColumnMaker, MadeColumns
from agentgym.trainers.data.samples import FilteredGroup, filter_groups
from agentgym.trainers.run.env import RunEnv
from agentgym.trainers.types import Metrics
from agentgym.types import TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvGroups:
    """The groups of one environment in a step, and the columns that the model computes for them."""

    env: RunEnv
    groups: tuple[TrajectoryGroup, ...]
    made: MadeColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvCredit:
    """The credit of one environment's groups."""

    of: EnvGroups
    credit: CreditResult
    verdicts: tuple[FilteredGroup, ...]

    @property
    def metrics(self) -> Metrics:
        """Return the metrics of credit and columns, prefixed with the environment's name in a mixture."""
        numbers = {f"credit/{name}": value for name, value in self.credit.diagnostics.items()} | self.of.made.metrics
        return {f"{self.of.env.prefix}{name}": value for name, value in numbers.items()}

    @property
    def recorded(self) -> list[tuple[FilteredGroup, dict[str, Any]]]:
        """Return the verdicts with the columns that credit read."""
        return list(zip(self.verdicts, split_columns(self.of.made.columns, self.of.groups), strict=True))


def split_by_env(
    envs: Sequence[RunEnv], groups: Sequence[TrajectoryGroup]
) -> list[tuple[RunEnv, tuple[TrajectoryGroup, ...]]]:
    """Split groups by environment, in the order of the environments; environments without groups are left out."""
    found = [(env, tuple(group for group in groups if group.env_name == env.name)) for env in envs]
    return [(env, own) for env, own in found if own]


def make_columns(
    envs: Sequence[RunEnv], groups: Sequence[TrajectoryGroup], makers: Mapping[str, ColumnMaker], step: int
) -> list[EnvGroups]:
    """Split a step's groups by environment, and compute the columns that each environment's credit reads."""
    parts = split_by_env(envs, groups)
    return [EnvGroups(env=env, groups=own, made=makers[env.key].make(own, step)) for env, own in parts]


def credit_envs(parts: Sequence[EnvGroups], memory: dict[str, CreditState], step: int) -> list[EnvCredit]:
    """Credit each environment's groups, and update its memory."""
    found = []
    for part in parts:
        key = part.env.key
        verdicts, credit = judged(part.env, part.groups, memory[key], step, part.made.columns)
        memory[key] = credit.state
        found.append(EnvCredit(of=part, credit=credit, verdicts=tuple(verdicts)))
    return found


def judged(
    env: RunEnv,
    groups: Sequence[TrajectoryGroup],
    state: CreditState,
    step: int,
    columns: Mapping[str, object] | None = None,
) -> tuple[list[FilteredGroup], CreditResult]:
    """Credit groups of one environment in a step, and decide which of them train."""
    config = env.at(step)
    credit = credit_groups(groups, config.credit, columns=columns, state=state)
    return filter_groups(groups, credit, config.group.min_valid, config.zero_variance_filter), credit


def in_order(credited: Sequence[EnvCredit]) -> list[FilteredGroup]:
    """Return the verdicts of all environments in the order of the groups."""
    return sorted((verdict for part in credited for verdict in part.verdicts), key=lambda one: one.group.ordinal)
