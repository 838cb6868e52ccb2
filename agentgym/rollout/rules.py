"""Rules of branching, pruning and guidance as programs, so that programs can call them.

``strategy.branching=arpo`` and ``strategy.program=arpo`` are the same. A program plays a part of its group by a rule
with ``await group.part(4).play_by(ArpoOptions())``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from agentgym.plugins import Component
from agentgym.rollout.branch import Start
from agentgym.rollout.pruned import Prune
from agentgym.rollout.strategies.results import checked_result
from agentgym.rollout.waves import AtOnce, ChooseStarts, InWaves
from agentgym.types import Trajectory

if TYPE_CHECKING:
    from agentgym.rollout.program import Group


def starts_by(
    rule: Component, options: Any, group_size: int, rng_of: Callable[[int], np.random.Generator]
) -> ChooseStarts:
    """Return the function that chooses the starts of a group's episodes by a branching.

    Args:
        rule: the branching.
        options: its settings.
        group_size: size that it reckons with.
        rng_of: returns the random numbers of a call from the number of episodes that were played.
    """
    num_seen = 0

    def choose(played: Sequence[Trajectory], num_left: int) -> Sequence[Start]:
        nonlocal num_seen
        num_before, num_seen = num_seen, len(played)
        starts: Sequence[Start] = _asked(
            rule,
            options,
            played=played,
            num_seen=num_before,
            num_left=num_left,
            group_size=group_size,
            rng=rng_of(len(played)),
        )
        return starts

    return choose


def pruned_by(rule: Component, options: Any, rate: float | None) -> Prune:
    """Return the pause of a group's members, and the choice of a pruning at a success rate of the task."""

    def choose(members: Sequence[Trajectory]) -> list[int]:
        places = [at for at, one in enumerate(members) if one.is_stopped]
        ended, running = [one for one in members if one.status.is_evidence], [members[at] for at in places]
        chosen = _asked(rule, options, ended=ended, running=running, rate=rate, group_size=len(members))
        return [places[at] for at in chosen]

    return Prune(options.after, choose)


def helped_by(rule: Component, options: Any, group: Group) -> AtOnce:
    """Return the program whose last episodes get the help of a guidance: hints or demonstrations of the oracle."""
    facts = group.facts
    num, num_hints = _asked(rule, options, rate=facts.rate, group_size=group.size, step=facts.step, criteria=())
    demonstrates = rule.name == "demonstration"
    return AtOnce([Start(demonstrates=demonstrates, num_hints=0 if demonstrates else int(num_hints))] * int(num))


async def play_by_rule(rule: Component, options: Any, group: Group) -> None:
    """Play a group by a rule.

    Raises:
        ConfigError: a program calls a rule that only the run can prepare, since it asks a model or scores tokens.
    """
    is_asking = getattr(options, "pivot", "") in ("reflect", "judge") or hasattr(options, "num_requests")
    if is_asking or getattr(options, "scores_copies", False) or rule.name == "rubric":
        key = rule.family
        raise group.stage.refuse(
            f"calls the {key} {rule.name!r}, which the run must prepare: set strategy.{key}={rule.name} in its place"
        )
    if rule.family == "branching":
        await InWaves(starts_by(rule, options, group.size, lambda num: group.rng))(group)
    elif rule.family == "pruning":
        await pruned_by(rule, options, group.facts.rate)(group)
    else:
        await helped_by(rule, options, group)(group)


def _asked(rule: Component, options: Any, **values: object) -> Any:
    return checked_result(rule, values, rule.invoke(values, options))
