"""The rollout strategies of a run, or of one environment of a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from agentgym.errors import ConfigError
from agentgym.plugins import ByKind, Component
from agentgym.rollout.strategies.component import BUDGETS, HORIZONS, TASK_SOURCES
from agentgym.rollout.strategies.even import EvenOptions
from agentgym.rollout.strategies.fixed import FixedOptions
from agentgym.rollout.strategies.order import OrderOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyConfig:
    """One strategy of each family, by its ``kind`` and settings.

    Example:
        >>> from agentgym.rollout.strategies.knapsack import KnapsackOptions
        >>> StrategyConfig(budget=KnapsackOptions(low=4)).budget.low
        4
    """

    tasks: Annotated[Any, ByKind(TASK_SOURCES)] = OrderOptions()
    """The tasks that a step plays."""
    budget: Annotated[Any, ByKind(BUDGETS)] = EvenOptions()
    """The number of episodes of each group."""
    horizon: Annotated[Any, ByKind(HORIZONS)] = FixedOptions()
    """The most turns of an episode."""

    probe: int = 0
    """Episodes of every training task before RL. Tasks that were always or never solved are left out, and the others'
    results begin the history. 0 for none."""

    def __post_init__(self) -> None:
        if self.probe < 0 or self.probe == 1:
            raise ConfigError(f"strategy.probe must be 0 or at least 2, got {self.probe}")
        for options in (self.tasks, self.budget, self.horizon):
            if why := options.idle():
                raise ConfigError(f"strategy: {options.kind} can change nothing ({why})")

    @property
    def task_source(self) -> Component:
        """The task source."""
        return TASK_SOURCES[self.tasks.kind]

    @property
    def budget_rule(self) -> Component:
        """The budget."""
        return BUDGETS[self.budget.kind]

    @property
    def horizon_rule(self) -> Component:
        """The horizon."""
        return HORIZONS[self.horizon.kind]

    @property
    def extends_groups(self) -> bool:
        """True if the budget adds episodes to groups that are done."""
        return self.budget_rule.reads("rate")

    @property
    def least(self) -> int | None:
        """The smallest group that the budget may ask for; None if that is the configured size."""
        return getattr(self.budget, "low", None)
