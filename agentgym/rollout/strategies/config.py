"""Configuration of the rollout strategies of a run, or of one environment of a mixture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from agentgym.errors import ConfigError
from agentgym.plugins import ByKind, Component, Named, Registry
from agentgym.rollout.strategies.component import (
    BRANCHINGS,
    BUDGETS,
    GUIDANCE,
    HORIZONS,
    PROGRAMS,
    PRUNINGS,
    REPLAYS,
    TASK_SOURCES,
)
from agentgym.rollout.strategies.demonstration import DemonstrationOptions
from agentgym.rollout.strategies.results import checked_result
from agentgym.rollout.strategies.rubric import RubricOptions
from agentgym.rollout.strategies.teacher import FeedbackOptions, TeacherOptions
from agentgym.settings import Settings

_REGISTRIES: Mapping[str, Registry[Any]] = {
    "tasks": TASK_SOURCES, "budget": BUDGETS, "horizon": HORIZONS, "branching": BRANCHINGS, "pruning": PRUNINGS,
    "guidance": GUIDANCE, "replay": REPLAYS, "program": PROGRAMS,
}  # fmt: skip
"""The registry of each field's components."""
_PLAYING: Mapping[str, str] = {
    "pruning": "to_the_end", "branching": "at_once", "guidance": "unaided", "program": "rules",
}  # fmt: skip
"""Keys of the program that plays the groups, one of which may be set, with the kind of those that are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyConfig(Settings):
    """One strategy of each family, given by its ``kind`` and settings.

    Example:
        >>> from agentgym.rollout.strategies.knapsack import KnapsackOptions
        >>> StrategyConfig(budget=KnapsackOptions(low=4)).budget.low
        4
    """

    tasks: Annotated[Any, ByKind(TASK_SOURCES, takes_names=True)] = Named(kind="order")
    """Source of a step's tasks."""
    budget: Annotated[Any, ByKind(BUDGETS, takes_names=True)] = Named(kind="even")
    """Number of episodes of each group."""
    horizon: Annotated[Any, ByKind(HORIZONS, takes_names=True)] = Named(kind="fixed")
    """Most turns of an episode."""
    branching: Annotated[Any, ByKind(BRANCHINGS, takes_names=True)] = Named(kind="at_once")
    """Starts of a group's episodes."""
    pruning: Annotated[Any, ByKind(PRUNINGS, takes_names=True)] = Named(kind="to_the_end")
    """Cancellation of episodes while they are played."""
    guidance: Annotated[Any, ByKind(GUIDANCE, takes_names=True)] = Named(kind="unaided")
    """Help for episodes: hints, or demonstrations beside them."""
    replay: Annotated[Any, ByKind(REPLAYS, takes_names=True)] = Named(kind="fresh")
    """Replay of earlier episodes."""
    program: Annotated[Any, ByKind(PROGRAMS, takes_names=True)] = Named(kind="rules")
    """Program that plays each group, in place of ``branching``, ``pruning`` and ``guidance``, whose rules are programs
    of the same names."""

    probe: int = 0
    """Episodes per training task before RL; 0 for none. Tasks that were always or never solved are left out, and the
    results of the others begin the history."""

    def __post_init__(self) -> None:
        if self.probe < 0 or self.probe == 1:
            raise ConfigError(f"strategy.probe must be 0 or at least 2, got {self.probe}")
        self._move_rule()
        for family in _REGISTRIES:
            options = getattr(self, family)
            if why := options.idle():
                raise ConfigError(f"{options.kind} has no effect ({why}); change its settings or remove it")
        if self.keeps_probe and not self.probe:
            raise ConfigError("strategy.replay.probed stores what strategy.probe plays: set it to at least 2")
        playing = [name for name, unset in _PLAYING.items() if getattr(self, name).kind != unset]
        if len(playing) > 1:
            one, other = (getattr(self, name).kind for name in playing[:2])
            raise ConfigError(
                f"{one} and {other} both decide how a group is played: remove strategy.{playing[0]} or "
                f"strategy.{playing[1]}, or write a program that calls both (docs/strategies.md)"
            )

    def _move_rule(self) -> None:
        """Set the key of a rule that ``program`` names, as in ``program=arpo``, since both are the same."""
        family = PROGRAMS[self.program.kind].rule
        if family and getattr(self, family).kind == _PLAYING[family]:
            object.__setattr__(self, family, self.program)
            object.__setattr__(self, "program", Named(kind="rules"))

    def rule(self, family: str) -> Component:
        """Return the component that a field names, such as ``budget``."""
        found: Component = _REGISTRIES[family][getattr(self, family).kind]
        return found

    def call(self, family: str, **values: object) -> Any:
        """Call the component that a field names with the values that it reads.

        Raises:
            ConfigError: it is a user's, and failed or returned something that its family cannot.
        """
        rule = self.rule(family)
        return checked_result(rule, values, rule.invoke(values, getattr(self, family)))

    @property
    def runs_program(self) -> bool:
        """True if ``program`` plays the groups."""
        return bool(self.program.kind != "rules")

    @property
    def uses(self) -> frozenset[str]:
        """Means that ``program`` has declared, such as ``branches``."""
        return frozenset(PROGRAMS[self.program.kind].uses)

    @property
    def reads_facts(self) -> bool:
        """True if groups are played by the facts that were known when they were planned."""
        return self.runs_program or self.prunes

    @property
    def branches(self) -> bool:
        """True if episodes may branch from others."""
        return "branches" in self.uses or bool(self.branching.kind != "at_once")

    @property
    def prunes(self) -> bool:
        """True if episodes may be cancelled while they are played."""
        return bool(self.pruning.kind != "to_the_end")

    @property
    def guides(self) -> bool:
        """True if the guidance helps some episodes."""
        return bool(self.guidance.kind != "unaided")

    @property
    def demonstrates(self) -> bool:
        """True if the oracle plays some members of a group."""
        return "demonstrations" in self.uses or isinstance(self.guidance, DemonstrationOptions)

    @property
    def teaches(self) -> bool:
        """True if a teacher writes hints or feedback."""
        return isinstance(self.guidance, TeacherOptions)

    @property
    def shows_rubric(self) -> bool:
        """True if members of a group see a checklist."""
        return isinstance(self.guidance, RubricOptions)

    @property
    def gives_feedback(self) -> bool:
        """True if a teacher comments on turns that earned nothing."""
        return isinstance(self.guidance, FeedbackOptions)

    @property
    def replays(self) -> bool:
        """True if earlier episodes are replayed."""
        return bool(self.replay.kind != "fresh")

    @property
    def replays_groups(self) -> bool:
        """True if whole groups are replayed beside the fresh ones."""
        return self.rule("replay").reads("group_ages")

    @property
    def keeps_probe(self) -> bool:
        """True if successes of the probe can be replayed."""
        return bool(getattr(self.replay, "probed", False))

    @property
    def needs_oracle(self) -> bool:
        """True if episodes get hints or demonstrations from the environment's oracle."""
        of_oracle = self.guides and not (self.teaches or self.shows_rubric)
        return (
            of_oracle
            or not self.uses.isdisjoint(("oracle", "demonstrations"))
            or bool(getattr(self.branching, "num_hints", 0))
        )

    @property
    def reflects(self) -> bool:
        """True if the policy reflects on its failures before retries."""
        return getattr(self.branching, "pivot", "") == "reflect"

    @property
    def scores_copies(self) -> bool:
        """True if episodes copy tokens that were sampled in another context, which the engine must score."""
        return bool(getattr(self.branching, "scores_copies", False))

    @property
    def asks_judge(self) -> bool:
        """True if a judge names the turns at which retries begin."""
        return getattr(self.branching, "pivot", "") == "judge"

    @property
    def off_policy(self) -> str:
        """Names of strategies that train tokens sampled from another prompt or policy; empty if there are none."""
        hints = self.needs_oracle or self.reflects or self.teaches or self.shows_rubric
        helps = hints and not self.demonstrates and not self.gives_feedback
        helps = helps or not self.uses.isdisjoint(("hints", "oracle"))
        return " and ".join([*(["hints"] if helps else []), *(["replay"] if self.replays else [])])

    @property
    def extends_groups(self) -> bool:
        """True if the budget adds episodes to finished groups."""
        return self.rule("budget").reads("rate")

    @property
    def extends_turns(self) -> bool:
        """True if the horizon reads which episodes the limit of turns cut short."""
        return self.rule("horizon").reads("visits")

    @property
    def least(self) -> int | None:
        """Smallest group size that the budget may return; None if it is the configured size."""
        return getattr(self.budget, "low", None)
