"""The families of rollout strategies: a registry and a decorator each.

A strategy is a function whose parameters say what it reads, as a component of credit is. A new one is one file::

    @dataclass(frozen=True, slots=True, kw_only=True)
    class UnseenOptions(Options):
        kind: str = "unseen"

    @task_source("unseen", paper="...")
    def unseen(num_tasks: int, history: TaskHistory, positions: Sequence[int], options: UnseenOptions) -> list[int]:
        ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentgym.plugins import Component, F, Registry, Status, checked_options

TASK_SOURCES = Registry[Component](
    "task source", "agentgym.rollout.strategies", ("num_tasks", "positions", "order", "history", "step", "rng")
)
BUDGETS = Registry[Component]("budget", "agentgym.rollout.strategies", ("rates", "group_size", "rate"))
HORIZONS = Registry[Component]("horizon", "agentgym.rollout.strategies", ("step", "visits"))
BRANCHINGS = Registry[Component](
    "branching", "agentgym.rollout.strategies", ("played", "num_seen", "num_left", "group_size", "rng")
)
GUIDANCE = Registry[Component]("guidance", "agentgym.rollout.strategies", ("rate", "group_size"))
REPLAYS = Registry[Component](
    "replay", "agentgym.rollout.strategies", ("successes", "num_stored", "ages", "baseline", "step", "rng")
)
FAMILIES = {
    "task source": TASK_SOURCES,
    "budget": BUDGETS,
    "horizon": HORIZONS,
    "branching": BRANCHINGS,
    "guidance": GUIDANCE,
    "replay": REPLAYS,
}


def task_source(name: str, **facts: object) -> Callable[[F], F]:
    """Register a task source: a function to the tasks of a step's groups, as indices into the training tasks.

    It may take ``num_tasks``, ``positions`` (of the groups in the order of the environment's groups; as many tasks are
    wanted), ``order`` (position -> index in the run's shuffled order), ``history``
    (:class:`~agentgym.rollout.strategies.history.TaskHistory`), ``step``, ``rng`` (a numpy generator of the step's own)
    and its options.

    Args:
        name: its name in ``strategy.tasks`` and in ``agentgym list --strategies``.
        facts: ``paper``, ``status``, ``limits``, ``test``, ``options``.
    """
    return _decorator("task source", name, facts)


def budget(name: str, **facts: object) -> Callable[[F], F]:
    """Register a budget: a function to the number of episodes of groups.

    One that takes ``rates`` (success rate per group's task, None where it is unknown) decides before a step and returns
    a size per group. One that takes ``rate`` (success of a finished group) decides then, and returns how many episodes
    more the group gets. Both may take ``group_size`` and options.
    """
    return _decorator("budget", name, facts)


def horizon(name: str, **facts: object) -> Callable[[F], F]:
    """Register a horizon: a function to the most turns of an episode, None for the environment's own.

    It may take ``step``, ``visits`` (of the task, oldest first) and its options.
    """
    return _decorator("horizon", name, facts)


def branching(name: str, **facts: object) -> Callable[[F], F]:
    """Register a branching: a function to the starts of a group's next episodes, called until the group is complete.

    It may take ``played`` (the trajectories of the group so far, failed ones included), ``num_seen`` (how many of them
    it has seen before), ``num_left`` (episodes left to play), ``group_size``, ``rng`` and its options. It returns
    :class:`~agentgym.rollout.branch.Start` for some of the episodes left, or nothing to leave the rest out.
    """
    return _decorator("branching", name, facts)


def guidance(name: str, **facts: object) -> Callable[[F], F]:
    """Register guidance: a function to ``(episodes with hints, turns with a hint in each)`` of a group.

    It may take ``rate`` (unaided success of the task so far, None where it is unknown), ``group_size`` and options.
    """
    return _decorator("guidance", name, facts)


def replay(name: str, **facts: object) -> Callable[[F], F]:
    """Register a replay: a function to ``(member, stored)``, or None: the member of a group that a stored success takes
    the place of.

    It may take ``successes`` (of each member, None if it failed with the infrastructure), ``num_stored`` (stored
    successes of the task, the oldest first), ``ages`` (of each of these, in steps), ``step``, ``baseline`` (the median
    success rate of the groups of the last ``window`` steps, an option), ``rng`` and its options, whose ``keep`` limits
    what is stored of a task.
    """
    return _decorator("replay", name, facts)


def _decorator(family: str, name: str, facts: dict[str, Any]) -> Callable[[F], F]:
    known = dict(facts)
    named = known.pop("options", None)
    status: Status = known.pop("status", "user")

    def register(function: F) -> F:
        options = checked_options(family, name, function, named)
        FAMILIES[family].add(
            Component(name=name, family=family, function=function, options=options, status=status, **known)
        )
        return function

    return register


def strategy_table() -> tuple[Component, ...]:
    """Return every strategy, by family.

    Example:
        >>> [component.name for component in strategy_table() if component.family == "horizon"]
        ['extending', 'fixed', 'scaling_inter']
    """
    return tuple(component for family in FAMILIES.values() for component in family.values())
