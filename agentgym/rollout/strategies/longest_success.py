"""A limit of turns for each task: the length of its longest success so far.

Source: DART, "Efficient Multi-turn RL for GUI Agents via Decoupled Training and Adaptive Data Curation", which does not
play a task for more steps than its longest success took. Failures otherwise run to the limit of the environment, and
take most of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import horizon
from agentgym.rollout.strategies.history import Visit
from agentgym.settings import Natural


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestSuccessOptions(Options):
    """Settings of DART's limit of turns."""

    kind: str = "longest_success"
    margin: Natural = 0
    """Turns beyond the longest success."""


@horizon(
    "longest_success",
    paper="Efficient Multi-turn RL for GUI Agents via Decoupled Training and Adaptive Data Curation",
    status="reproduced",
    limits="counts successes of the run, not those of strategy.probe; a limit rises by margin at most",
    test="tests/rollout/test_strategies.py::test_a_task_is_played_for_as_long_as_its_longest_success",
)
def longest_success(visits: Sequence[Visit], options: LongestSuccessOptions) -> int | None:
    """Return the most turns of a task's episodes, None for a task that never succeeded.

    Example:
        >>> visits = [Visit(0, 8, 0), Visit(3, 8, 2, longest=7), Visit(5, 8, 1, longest=4)]
        >>> [longest_success(visits[:num], LongestSuccessOptions(margin=1)) for num in range(4)]
        [None, None, 8, 8]
    """
    longest = max((visit.longest for visit in visits), default=0)
    return longest + options.margin if longest else None
