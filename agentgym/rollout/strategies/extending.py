"""More turns for tasks whose episodes the limit ends although they are getting somewhere.

Every task begins with ``start`` turns. After each visit in which at least ``share`` of its episodes were cut short, its
limit grows by ``more``. An episode was cut short if the limit of turns ended it without success, and it had earned a
reward, or was in a state that it had not been in before: one that runs in circles gets no more turns. "Thinking vs.
Doing: Agents that Reason by Scaling Test-Time Interaction" grows one limit for all tasks by a schedule; the rule here
is agentgym's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import horizon
from agentgym.rollout.strategies.history import Visit
from agentgym.settings import Count, PositiveFraction
from agentgym.types import Status, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendingOptions(Options):
    """The limits of a task."""

    kind: str = "extending"
    start: Count = 10
    """Most turns at first."""
    more: Count = 5
    """Turns that a visit may add."""
    most: Count = 30
    """Most turns in the end; the environment's own limit holds, too."""
    share: PositiveFraction = 0.25
    """Share of a visit's episodes that were cut short from which on its task gets more turns."""

    def check_together(self) -> None:
        self.check(is_ok=self.start < self.most, message=f"needs start < most, got {self.start} and {self.most}")


@horizon(
    "extending",
    paper="agentgym's own; Thinking vs. Doing: Agents that Reason by Scaling Test-Time Interaction grows one limit",
    status="experimental",
    limits="a limit never falls",
    test="tests/rollout/test_strategies.py::test_a_task_gets_more_turns_where_the_limit_cuts_progress_short",
)
def extending(visits: Sequence[Visit], options: ExtendingOptions) -> int:
    """Return the most turns of a task's episodes, by its visits so far.

    Example:
        >>> visits = [Visit(0, 8, 0, num_cut=2), Visit(3, 8, 1, num_cut=1), Visit(5, 8, 1, num_cut=7)]
        >>> [extending(visits[:num], ExtendingOptions()) for num in range(4)]
        [10, 15, 15, 20]
    """
    num_extended = sum(visit.num_cut >= options.share * visit.num_episodes for visit in visits if visit.num_cut)
    return min(options.most, options.start + options.more * num_extended)


def was_cut_short(trajectory: Trajectory) -> bool:
    """Return True if the limit of turns ended an episode that was getting somewhere."""
    if trajectory.status is not Status.TRUNCATED_TURNS or trajectory.success or not trajectory.turns:
        return False
    *before, last = (turn.state_key for turn in trajectory.turns)
    return any(turn.reward > 0 for turn in trajectory.turns) or (last is not None and last not in before)
