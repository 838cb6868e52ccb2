"""The quorum of a group: the number of members that are started and the number that complete it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from agentgym.errors import ConfigError

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """Start ``num_started`` members, and complete the group with the first ``num_needed`` valid ones.

    If fewer are needed than started, a group does not wait for its slowest members. It is then a sample of the *fast*
    episodes. Where success depends on duration (long searches that succeed, loops that never end), returns and
    advantages are biased towards short episodes.
    """

    num_started: int
    num_needed: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_needed <= self.num_started:
            raise ConfigError(f"{self.num_needed} members are needed of {self.num_started} that are started")

    def resized(self, change: int, group_size: int) -> Quorum:
        """Return the quorum of a group that is larger or smaller than ``group_size`` by ``change`` members.

        Example:
            >>> Quorum(num_started=10, num_needed=8).resized(-4, 8)
            Quorum(num_started=6, num_needed=4)
        """
        needed = self.num_needed + change if self.num_needed == group_size else self.num_needed
        return Quorum(num_started=self.num_started + change, num_needed=needed)


async def first_valid(
    jobs: Sequence[asyncio.Task[Result]], is_valid: Callable[[Result], bool], num_needed: int
) -> tuple[int, ...]:
    """Wait until enough jobs have a valid result, or all are done; cancel the others.

    Returns:
        The indices of the jobs that count, in order: ``num_needed`` valid ones, and the invalid ones done before them.

    Raises:
        Exception: raised by a job; the others are cancelled.
    """
    counting: list[int] = []
    num_valid = 0
    left = set(range(len(jobs)))
    try:
        while left and num_valid < num_needed:
            await asyncio.wait([jobs[at] for at in left], return_when=asyncio.FIRST_COMPLETED)
            for at in sorted(at for at in left if jobs[at].done()):
                left.discard(at)
                if num_valid < num_needed:
                    counting.append(at)
                    num_valid += is_valid(jobs[at].result())
        return tuple(sorted(counting))
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
