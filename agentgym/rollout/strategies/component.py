"""The families of rollout strategies, each with a registry and a decorator.

A strategy is a function whose parameters name the data it reads, like a component of credit. A new one is one file::

    @dataclass(frozen=True, slots=True, kw_only=True)
    class UnseenOptions(Options):
        kind: str = "unseen"

    @task_source("unseen", paper="...")
    def unseen(num_tasks: int, history: TaskHistory, positions: Sequence[int], options: UnseenOptions) -> list[int]:
        ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from agentgym.errors import ConfigError
from agentgym.plugins import Component, F, Registry, Status, checked_options

USES: Final = ("branches", "hints", "oracle", "comments", "demonstrations")
"""Means of programs that change what credit and loss read: branches of episodes, hints as text, hints of what the
environment's oracle would do, comments on replies, and episodes that the oracle plays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(Component):
    """A coroutine function that plays a group, with the means that it uses."""

    uses: tuple[str, ...] = ()
    rule: str = ""
    """Family of the rule of the same name that it plays by, empty for none."""


class _ByRule:
    """The program that plays a group by a branching, a pruning or a guidance."""

    def __init__(self, rule: Component) -> None:
        self._rule, self.__module__, self.__doc__ = rule, rule.module, rule.call.__doc__

    async def __call__(self, group: Any, options: Any) -> None:
        from agentgym.rollout.rules import play_by_rule  # rules are programs, which are written with this module

        await play_by_rule(self._rule, options, group)


TASK_SOURCES = Registry[Component](
    "task source", "agentgym.rollout.strategies", ("num_tasks", "positions", "order", "history", "step", "rng")
)
BUDGETS = Registry[Component]("budget", "agentgym.rollout.strategies", ("rates", "group_size", "rate"))
HORIZONS = Registry[Component]("horizon", "agentgym.rollout.strategies", ("step", "visits"))
BRANCHINGS = Registry[Component](
    "branching", "agentgym.rollout.strategies", ("played", "num_seen", "num_left", "group_size", "rng")
)
PRUNINGS = Registry[Component]("pruning", "agentgym.rollout.strategies", ("ended", "running", "rate", "group_size"))
GUIDANCE = Registry[Component]("guidance", "agentgym.rollout.strategies", ("rate", "group_size", "step", "criteria"))
REPLAYS = Registry[Component](
    "replay",
    "agentgym.rollout.strategies",
    ("successes", "num_stored", "ages", "baseline", "step", "rng", "group_ages", "num_fresh"),
)
PROGRAMS = Registry[Program]("program", "agentgym.rollout.strategies", ("group",))
FAMILIES: dict[str, Registry[Any]] = {
    "task source": TASK_SOURCES,
    "budget": BUDGETS,
    "horizon": HORIZONS,
    "branching": BRANCHINGS,
    "pruning": PRUNINGS,
    "guidance": GUIDANCE,
    "replay": REPLAYS,
    "program": PROGRAMS,
}


def task_source(name: str, **facts: object) -> Callable[[F], F]:
    """Register a task source, which returns the tasks of a step's groups as indices into the training tasks.

    It may take ``num_tasks``, ``positions`` (positions of the groups in the environment's order; one task per position
    is required), ``order`` (position -> index in the run's shuffled order), ``history``
    (:class:`~agentgym.rollout.strategies.history.TaskHistory`), ``step``, ``rng`` (a numpy generator for the step) and
    its options.

    Args:
        name: name in ``strategy.tasks`` and in ``agentgym list --strategies``.
        facts: ``paper``, ``status``, ``limits``, ``test``, ``options``.
    """
    return _decorator("task source", name, facts)


def budget(name: str, **facts: object) -> Callable[[F], F]:
    """Register a budget, which returns the numbers of episodes of groups.

    A budget that takes ``rates`` (success rate of each group's task, None if unknown) decides before a step and returns
    one size per group. A budget that takes ``rate`` (success rate of a finished group) decides after the group and
    returns the number of additional episodes. Both may take ``group_size`` and options.
    """
    return _decorator("budget", name, facts)


def horizon(name: str, **facts: object) -> Callable[[F], F]:
    """Register a horizon, which returns the most turns of an episode at ``step``; None for the environment's limit."""
    return _decorator("horizon", name, facts)


def branching(name: str, **facts: object) -> Callable[[F], F]:
    """Register a branching, which returns the starts of a group's next episodes and is called until the group is
    complete.

    It may take ``played`` (the trajectories of the group so far, failed ones included), ``num_seen`` (number of them in
    earlier calls), ``num_left`` (number of remaining episodes), ``group_size``, ``rng`` and its options. It returns a
    :class:`~agentgym.rollout.branch.Start` for some of the remaining episodes, or an empty list to drop the rest.
    """
    return _decorator("branching", name, facts)


def pruning(name: str, **facts: object) -> Callable[[F], F]:
    """Register a pruning, which returns the indices of the paused members of a group that go on.

    Its options name the pause by ``after``, a number of turns. It may take ``ended`` (members that had ended by then,
    failed ones left out), ``running`` (the members at their pause), ``rate`` (success rate of the task so far, None if
    unknown), ``group_size`` and its options.
    """
    return _decorator("pruning", name, facts)


def guidance(name: str, **facts: object) -> Callable[[F], F]:
    """Register guidance, which returns ``(episodes with help, turns with a hint in each)`` of a group.

    It may take ``rate`` (success rate of the task without hints so far, None if unknown), ``group_size``, ``step``,
    ``criteria`` (lines of the checklist, see ``rubric``) and options.
    """
    return _decorator("guidance", name, facts)


def replay(name: str, **facts: object) -> Callable[[F], F]:
    """Register a replay, which returns ``(member, stored)`` to replace a group's member by a stored success, or None.

    It may take ``successes`` (of each member, None if it failed with the infrastructure), ``num_stored`` (stored
    successes of the task, the oldest first), ``ages`` (of each of these, in steps), ``step``, ``baseline`` (the median
    success rate of the groups of the last ``window`` steps, an option), ``rng`` and its options, whose ``keep`` limits
    what is stored of a task.

    A replay that takes ``group_ages`` (in steps, of the stored groups of the last ``window`` steps, an option; the
    oldest first) returns the indices of whole groups that a step trains beside its ``num_fresh`` own.
    """
    return _decorator("replay", name, facts)


def program(name: str, *, uses: Collection[str] = (), **facts: object) -> Callable[[F], F]:
    """Register a program: a coroutine function that plays a group.

    It takes ``group`` (:class:`~agentgym.rollout.program.Group`) and its options.

    Args:
        name: name in ``strategy.program`` and in ``agentgym list --strategies``.
        uses: means that credit and loss must know of, of :data:`USES`; a program that uses others is refused.
        facts: as of :func:`task_source`.
    """
    if wrong := [one for one in uses if one not in USES]:
        raise ConfigError(f"program {name!r}: unknown means {wrong[0]!r}; uses takes {', '.join(USES)}")
    register: Callable[[F], F] = _decorator("program", name, facts, tuple(uses))

    def checked(function: F) -> F:
        is_coroutine: bool = inspect.iscoroutinefunction(function)  # a bool, or mypy would narrow the function's type
        if not is_coroutine:
            raise ConfigError(f"program {name!r} is no coroutine function: write it with `async def`")
        return register(function)

    return checked


def _decorator(family: str, name: str, facts: dict[str, Any], uses: tuple[str, ...] = ()) -> Callable[[F], F]:
    known = dict(facts)
    named = known.pop("options", None)
    status: Status = known.pop("status", "user")

    def register(function: F) -> F:
        options = checked_options(family, name, function, named)
        given: dict[str, Any] = dict(name=name, function=function, options=options, status=status, **known)
        if family == "program":
            PROGRAMS.add(Program(**given, family=family, uses=uses))
            return function
        rule = Component(**given, family=family)
        FAMILIES[family].add(rule)
        before = PROGRAMS.registered(name)
        # a program of the name, or a rule of another family, stays what the name means
        if family in _PLAYED and (before is None or (before.rule, before.module) == (family, rule.module)):
            PROGRAMS.add(Program(**{**given, "function": _ByRule(rule)}, family="program", rule=family))
        return function

    return register


_PLAYED: Final = ("branching", "pruning", "guidance")
"""Families whose rules are programs, too."""


def strategy_table() -> tuple[Component, ...]:
    """Return every strategy, by family; programs that play by a rule are listed as rules.

    Example:
        >>> [component.name for component in strategy_table() if component.family == "horizon"]
        ['extending', 'fixed', 'longest_success', 'scaling_inter']
    """
    found = (component for family in FAMILIES.values() for component in family.values())
    return tuple(component for component in found if not (isinstance(component, Program) and component.rule))
