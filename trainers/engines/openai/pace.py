"""Limits of the requests to an endpoint, and the report of what their answers cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import httpx

from agentgym.canonical import read_json
from agentgym.spending import report_unanswered
from agentgym.trainers.engines.openai.endpoint import Endpoint


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


_TIMED_OUT: Final = (408, 499, 502, 504, 524)
"""Answers of gateways that stopped waiting for the model's server, which may bill the request."""


@contextmanager
def told_if_unanswered(url: str, model: str, *, is_paid: bool) -> Iterator[None]:
    """Report a request that ends without an answer: by a timeout, a lost connection, or the end of the command.

    Args:
        url, model: the endpoint's address, and the model that it was asked for.
        is_paid: the request is for a completion.
    """
    try:
        yield
    except (httpx.ConnectError, httpx.UnsupportedProtocol, httpx.InvalidURL):
        raise  # nothing was sent
    except (httpx.HTTPError, asyncio.CancelledError):
        if is_paid:
            report_unanswered(url, model)
        raise


def is_lost(response: httpx.Response) -> bool:
    """Return True if the completion of a request did not arrive, although the model may have made it."""
    if not response.is_success:
        return response.status_code in _TIMED_OUT
    try:
        read_json(response.content)
    except ValueError:
        return True
    return False
