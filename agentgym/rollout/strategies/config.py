"""The rollout strategies of a run, or of one environment of a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from agentgym.errors import ConfigError
from agentgym.plugins import ByKind, Component
from agentgym.rollout.strategies.component import BRANCHINGS, BUDGETS, GUIDANCE, HORIZONS, REPLAYS, TASK_SOURCES
from agentgym.rollout.strategies.defaults import (
    AtOnceOptions,
    EvenOptions,
    FixedOptions,
    FreshOptions,
    OrderOptions,
    UnaidedOptions,
)


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
    branching: Annotated[Any, ByKind(BRANCHINGS)] = AtOnceOptions()
    """The starts of a group's episodes."""
    guidance: Annotated[Any, ByKind(GUIDANCE)] = UnaidedOptions()
    """The hints that episodes get."""
    replay: Annotated[Any, ByKind(REPLAYS)] = FreshOptions()
    """The earlier episodes that are trained again."""

    probe: int = 0
    """Episodes of every training task before RL. Tasks that were always or never solved are left out, and the others'
    results begin the history. 0 for none."""

    def __post_init__(self) -> None:
        if self.probe < 0 or self.probe == 1:
            raise ConfigError(f"strategy.probe must be 0 or at least 2, got {self.probe}")
        for options in (self.tasks, self.budget, self.horizon, self.branching, self.guidance, self.replay):
            if why := options.idle():
                raise ConfigError(f"strategy: {options.kind} can change nothing ({why})")
        if self.branches and self.guides:
            raise ConfigError("strategy.guidance gives hints to episodes that begin at the start: leave branching out")
        if self.branches and self.extends_groups:
            raise ConfigError(f"{self.budget.kind} extends groups, and {self.branching.kind} fills them: choose one")

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
    def branching_rule(self) -> Component:
        """The branching."""
        return BRANCHINGS[self.branching.kind]

    @property
    def guidance_rule(self) -> Component:
        """The guidance."""
        return GUIDANCE[self.guidance.kind]

    @property
    def replay_rule(self) -> Component:
        """The replay."""
        return REPLAYS[self.replay.kind]

    @property
    def branches(self) -> bool:
        """True if episodes begin elsewhere than at the start of their task."""
        return not isinstance(self.branching, AtOnceOptions)

    @property
    def guides(self) -> bool:
        """True if the guidance gives hints."""
        return not isinstance(self.guidance, UnaidedOptions)

    @property
    def replays(self) -> bool:
        """True if earlier episodes are trained again."""
        return not isinstance(self.replay, FreshOptions)

    @property
    def needs_oracle(self) -> bool:
        """True if episodes get hints, which the environment's oracle gives."""
        return self.guides or bool(getattr(self.branching, "num_hints", 0))

    @property
    def reflects(self) -> bool:
        """True if the policy reads its failures before it tries again."""
        return getattr(self.branching, "pivot", "") == "reflect"

    @property
    def off_policy(self) -> str:
        """The strategies that train tokens as if they had been sampled from another prompt or policy; empty if none."""
        helps = self.needs_oracle or self.reflects
        return " and ".join([*(["hints"] if helps else []), *(["replay"] if self.replays else [])])

    @property
    def extends_groups(self) -> bool:
        """True if the budget adds episodes to groups that are done."""
        return self.budget_rule.reads("rate")

    @property
    def extends_turns(self) -> bool:
        """True if the horizon reads which episodes the limit of turns cut short."""
        return self.horizon_rule.reads("visits")

    @property
    def least(self) -> int | None:
        """The smallest group that the budget may ask for; None if that is the configured size."""
        return getattr(self.budget, "low", None)
