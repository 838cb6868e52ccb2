"""Checks of what a user's strategy returns. A wrong index or size would fail later, as a fault of something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from agentgym.errors import ConfigError
from agentgym.plugins import Component
from agentgym.rollout.branch import Start

Values = Mapping[str, Any]
Rule = tuple[str, Callable[[Any], bool]]
"""What a strategy must return, in words and as a test."""


def checked_result(rule: Component, values: Values, result: Any) -> Any:
    """Return the result of a strategy.

    Raises:
        ConfigError: a user's strategy returned something that its family cannot.
    """
    if not rule.is_own:
        return result
    expected, is_right = _EXPECTED[rule.family](values)
    if is_right(result):
        return result
    raise ConfigError(f"{rule.family} {rule.name!r} returned {str(result)[:100]}, expected {expected}")


def _is_whole(value: Any, low: int, high: float = float("inf")) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and low <= int(value) <= high


def _are_whole(values: Any, low: int, high: float = float("inf")) -> bool:
    return isinstance(values, Sequence | np.ndarray) and all(_is_whole(value, low, high) for value in values)


def _task_source(values: Values) -> Rule:
    count, most = len(values["positions"]), values["num_tasks"] - 1
    return (
        f"{count} whole numbers from 0 to {most}, the task of each group",
        lambda found: _are_whole(found, 0, most) and len(found) == count,
    )


def _budget(values: Values) -> Rule:
    if "rates" not in values:
        return "a whole number from 0 on, of additional episodes", lambda found: _is_whole(found, 0)
    count = len(values["rates"])
    return (
        f"{count} whole numbers from 1 on, the size of each group",
        lambda found: _are_whole(found, 1) and len(found) == count,
    )


def _horizon(values: Values) -> Rule:
    return "a whole number of turns from 1 on, or None", lambda found: found is None or _is_whole(found, 1)


def _branching(values: Values) -> Rule:
    most = values["num_left"]
    return (
        f"a list of at most {most} agentgym.rollout.branch.Start",
        lambda found: isinstance(found, Sequence) and len(found) <= most and all(isinstance(s, Start) for s in found),
    )


def _pruning(values: Values) -> Rule:
    most = len(values["running"]) - 1
    return (
        f"different whole numbers from 0 to {most}, the running members that go on",
        lambda found: _are_whole(found, 0, most) and len(set(found)) == len(found),
    )


def _guidance(values: Values) -> Rule:
    size = values["group_size"]
    return (
        f"(episodes with help, from 0 to {size}; turns with a hint, from 0 on)",
        lambda found: isinstance(found, Sequence) and len(found) == 2 and _are_whole(found, 0) and found[0] <= size,
    )


def _replay(values: Values) -> Rule:
    if "group_ages" in values:
        most = len(values["group_ages"]) - 1
        return f"whole numbers from 0 to {most}, the stored groups", lambda found: _are_whole(found, 0, most)
    members, stored = len(values["successes"]) - 1, values["num_stored"] - 1
    return (
        f"None, or (member from 0 to {members}, stored success from 0 to {stored})",
        lambda found: (
            found is None
            or (
                isinstance(found, Sequence)
                and len(found) == 2
                and _is_whole(found[0], 0, members)
                and _is_whole(found[1], 0, stored)
            )
        ),
    )


_EXPECTED: Final[Mapping[str, Callable[[Values], Rule]]] = {
    "task source": _task_source,
    "budget": _budget,
    "horizon": _horizon,
    "branching": _branching,
    "pruning": _pruning,
    "guidance": _guidance,
    "replay": _replay,
}
