"""A stream of groups, ahead of training by a bounded number of policy versions.

Every training step takes the same number of groups. Groups start in the order of their ordinals, as soon as the bound
allows, and continue while the policy is trained and its weights are replaced. Each is taken exactly once. With a bound
of 0 no group runs ahead, and training is on-policy.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from agentgym.errors import ConfigError
from agentgym.types import TrajectoryGroup

PlayGroup = Callable[[int], Awaitable[TrajectoryGroup]]
"""A function that runs the group of an ordinal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """The state of a stream in a checkpoint, in ordinals.

    Example:
        >>> StreamState(next_ordinal=5, pending=(3,)).num_taken
        4
    """

    next_ordinal: int = 0
    """First ordinal that has not been started."""
    pending: tuple[int, ...] = ()
    """Ordinals that were started and not taken, in order. A resumed run starts them again."""

    @property
    def num_taken(self) -> int:
        """The number of groups that were trained."""
        return self.next_ordinal - len(self.pending)


class GroupStream:
    """A runner of groups ahead of training, which returns them one training step at a time.

    At version v, after v steps, at most ``(v + 1 + max_staleness) * groups_per_step`` groups have been started. A step
    takes the finished groups, the oldest first, and waits only for those that would otherwise become too old. When a
    group is trained, no token is therefore older than ``max_staleness`` versions. Later groups may overtake a long
    episode, but it is never dropped.

    The bound is that of AReaL ("AReaL: A Large-Scale Asynchronous Reinforcement Learning System for Language
    Reasoning", eq. 3). Because the oldest groups are taken in time, it holds for every group, not only on average.

    Args:
        play: runs one group in an asyncio task; :meth:`take` raises its exceptions.
        num_groups: number of groups in the whole run.
        state: the state to resume from.
    """

    def __init__(
        self,
        play: PlayGroup,
        *,
        groups_per_step: int,
        max_staleness: int,
        num_groups: int,
        state: StreamState | None = None,
    ) -> None:
        if groups_per_step < 1 or max_staleness < 0:
            raise ConfigError("groups_per_step must be at least 1 and max_staleness at least 0")
        state = StreamState() if state is None else state
        self._play, self._num_groups = play, num_groups
        self._groups_per_step, self._max_staleness = groups_per_step, max_staleness
        self._again, self._next = list(state.pending), state.next_ordinal
        self._running: dict[int, asyncio.Task[TrajectoryGroup]] = {}
        self._started_at: dict[int, int] = {}
        """Policy version at which each running group was started."""

    @property
    def state(self) -> StreamState:
        """The state to save in a checkpoint."""
        return StreamState(next_ordinal=self._next, pending=tuple(sorted({*self._again, *self._running})))

    def fill(self, version: int) -> None:
        """Start the groups that the bound allows at this policy version."""
        limit = (version + 1 + self._max_staleness) * self._groups_per_step
        while self._again:
            self._start(self._again.pop(0), version)
        while self._next < min(limit, self._num_groups):
            self._next += 1
            self._start(self._next - 1, version)

    async def take(self, version: int) -> tuple[TrajectoryGroup, ...]:
        """Wait for the groups of this version's training step, and return them by ordinal.

        Raises:
            Exception: raised by playing a group.
        """
        self.fill(version)
        wanted = min(self._groups_per_step, len(self._running))
        while True:
            done = sorted(ordinal for ordinal, task in self._running.items() if task.done())
            self._raise_failure(done)
            chosen = sorted(done, key=lambda ordinal: (self._started_at[ordinal], ordinal))[:wanted]
            if len(chosen) == wanted and self._keeps_bound(chosen, version):
                return tuple(self._hand_out(ordinal) for ordinal in sorted(chosen))
            unfinished = [task for task in self._running.values() if not task.done()]
            await asyncio.wait(unfinished, return_when=asyncio.FIRST_COMPLETED)

    async def arrivals(self, version: int) -> AsyncIterator[tuple[TrajectoryGroup, ...]]:
        """Yield the groups of this version's step as they finish.

        Training can then begin before the last group of a step is finished. Needs ``max_staleness`` 0.

        Raises:
            Exception: raised by playing a group.
        """
        assert self._max_staleness == 0, "arrivals() needs max_staleness=0"
        self.fill(version)
        left = min(self._groups_per_step, len(self._running))
        while left:
            done = sorted(ordinal for ordinal, task in self._running.items() if task.done())[:left]
            self._raise_failure(done)
            if not done:
                await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
                continue
            left -= len(done)
            yield tuple(self._hand_out(ordinal) for ordinal in done)

    def _keeps_bound(self, chosen: Sequence[int], version: int) -> bool:
        """Return True if all remaining groups can be taken before they become too old.

        Until version d there are d - version steps after this one. Groups that are due by then and do not fit into
        these steps must be among the chosen.
        """
        for last in range(version, version + self._max_staleness + 1):
            due = [ordinal for ordinal, started in self._started_at.items() if started + self._max_staleness <= last]
            room = (last - version) * self._groups_per_step
            if len(due) - room > sum(ordinal in due for ordinal in chosen):
                return False
        return True

    async def close(self) -> None:
        """Cancel the running groups; they stay pending."""
        pending = self.state.pending
        tasks = list(self._running.values())
        self._running.clear()
        self._started_at.clear()
        self._again = list(pending)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    def _start(self, ordinal: int, version: int) -> None:
        self._running[ordinal] = asyncio.ensure_future(self._play(ordinal))
        self._started_at[ordinal] = version

    def _hand_out(self, ordinal: int) -> TrajectoryGroup:
        del self._started_at[ordinal]
        return self._running.pop(ordinal).result()

    def _raise_failure(self, done: Sequence[int]) -> None:
        for ordinal in done:
            if (error := self._running[ordinal].exception()) is not None:
                raise error
