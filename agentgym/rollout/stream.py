"""A stream of groups, ahead of training by a bounded number of policy versions.

Every training step takes the same number of groups. Groups start in the order of their ordinals, as soon as the bound
allows, and continue while the policy is trained and its weights are replaced. Each is taken exactly once. With a bound
of 0 no group runs ahead, and training is on-policy.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
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

    A run's groups may be split over several streams, in as many processes. Each starts every ``num_parts``-th group and
    takes its part of each step. Its state includes the groups of the others, so that any number of streams can go on.

    Args:
        play: runs one group in an asyncio task; :meth:`take` raises its exceptions. It is called when the group starts.
        num_groups: number of groups in the whole run.
        state: the state to resume from.
        part: index of this stream among those that share the groups.
        num_parts: number of streams that share the groups. With ``max_staleness`` above 0 it must divide
            ``groups_per_step``.
    """

    def __init__(
        self,
        play: PlayGroup,
        *,
        groups_per_step: int,
        max_staleness: int,
        num_groups: int,
        state: StreamState | None = None,
        part: int = 0,
        num_parts: int = 1,
    ) -> None:
        if groups_per_step < 1 or max_staleness < 0:
            raise ConfigError("groups_per_step must be at least 1 and max_staleness at least 0")
        if max_staleness and groups_per_step % num_parts:
            raise ConfigError(f"{num_parts} streams cannot share {groups_per_step} groups per step equally")
        state = StreamState() if state is None else state
        self._part, self._num_parts = part, num_parts
        self._play, self._num_groups = play, num_groups
        self._groups_per_step, self._max_staleness = groups_per_step, max_staleness
        self._again, self._next = list(state.pending[part::num_parts]), state.next_ordinal
        self._elsewhere = set(state.pending) - set(self._again)
        """Ordinals of the other parts that were started and not taken."""
        self._running: dict[int, asyncio.Task[TrajectoryGroup]] = {}
        self._started_at: dict[int, int] = {}
        """Policy version at which each running group was started."""

    @property
    def state(self) -> StreamState:
        """The state to save in a checkpoint."""
        pending = {*self._again, *self._running, *self._elsewhere}
        return StreamState(next_ordinal=self._next, pending=tuple(sorted(pending)))

    def fill(self, version: int) -> None:
        """Start the groups that the bound allows at this policy version."""
        limit = (version + 1 + self._max_staleness) * self._groups_per_step
        while self._again:
            self._start(self._again.pop(0), version)
        while self._next < min(limit, self._num_groups):
            ordinal, self._next = self._next, self._next + 1
            if ordinal % self._num_parts == self._part:
                self._start(ordinal, version)
            else:
                self._elsewhere.add(ordinal)

    def forget(self, taken: Iterable[int]) -> None:
        """Note which groups all streams together have taken, by ordinal; needed if there are several."""
        self._elsewhere.difference_update(taken)

    async def take(self, version: int) -> tuple[TrajectoryGroup, ...]:
        """Wait for this stream's groups of this version's training step, and return them by ordinal.

        Raises:
            Exception: raised by playing a group.
        """
        self.fill(version)
        wanted = min(self._num_wanted(version), len(self._running))
        while True:
            done = sorted(ordinal for ordinal, task in self._running.items() if task.done())
            self._raise_failure(done)
            chosen = sorted(done, key=lambda ordinal: (self._started_at[ordinal], ordinal))[:wanted]
            if len(chosen) == wanted and self._keeps_bound(chosen, version):
                return tuple(self._hand_out(ordinal) for ordinal in sorted(chosen))
            unfinished = [task for task in self._running.values() if not task.done()]
            await asyncio.wait(unfinished, return_when=asyncio.FIRST_COMPLETED)

    def _num_wanted(self, version: int) -> int:
        """Return the number of groups that this stream gives to a step."""
        first = version * self._groups_per_step
        return len(
            range(first + (self._part - first) % self._num_parts, first + self._groups_per_step, self._num_parts)
        )

    def _keeps_bound(self, chosen: Sequence[int], version: int) -> bool:
        """Return True if all remaining groups can be taken before they become too old.

        Until version d there are d - version steps after this one. Groups that are due by then and do not fit into
        these steps must be among the chosen.
        """
        for last in range(version, version + self._max_staleness + 1):
            due = [ordinal for ordinal, started in self._started_at.items() if started + self._max_staleness <= last]
            room = sum(map(self._num_wanted, range(version + 1, last + 1)))
            if len(due) - room > sum(ordinal in due for ordinal in chosen):
                return False
        return True

    async def close(self) -> None:
        """Cancel the running groups; they stay pending."""
        pending = sorted({*self._again, *self._running})
        tasks = list(self._running.values())
        self._running.clear()
        self._started_at.clear()
        self._again = pending
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
