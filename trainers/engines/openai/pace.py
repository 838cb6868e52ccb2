"""Limits of the requests to an endpoint, and the report of what their answers cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from agentgym.rollout.spending import report
from agentgym.trainers.engines.openai.endpoint import Endpoint
from agentgym.trainers.engines.openai.wire import usage_of
from agentgym.types import Json


class Pace:
    """Slots for requests: a limit of requests at a time, and of requests that begin in a minute.

    Args:
        num_slots: most requests at a time, if the endpoint sets no lower limit.
        wait, clock: functions that sleep for some seconds, and that return the current second.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        num_slots: int,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = asyncio.Semaphore(min(num_slots, endpoint.max_requests or num_slots))
        self._gap_s = 60.0 / endpoint.requests_per_minute if endpoint.requests_per_minute else 0.0
        self._wait, self._clock = wait, clock
        self._next_s = 0.0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot and for the time at which the next request may begin, and hold the slot."""
        async with self._slots:
            if self._gap_s:
                now = self._clock()
                begins, self._next_s = max(now, self._next_s), max(now, self._next_s) + self._gap_s
                if begins > now:
                    await self._wait(begins - now)
            yield


def report_answer(url: str, model: str, answer: Json) -> None:
    """Report the tokens of an answer to those who keep the money spent."""
    report(url, model, usage_of(answer))
