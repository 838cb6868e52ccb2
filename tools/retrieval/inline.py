"""Calls that run in the event loop while they are fast, and in threads while they are not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
Answer = TypeVar("Answer")
FAST_S = 0.001
"""Seconds below which a call is fast."""
LONG_S = 0.01
"""Seconds above which a single call sends the next ones to threads."""
NUM_FAST = 16
"""Number of fast calls in threads after which calls run in the event loop. A slow one counts as two against them."""


class InlineIfFast(Generic[P, Answer]):
    """A function that runs in threads until its calls have proved to be fast, then in the event loop.

    To hand a search of a quarter of a millisecond to a thread takes as much processor time again. In the event loop a
    long one would hold up all others, so slow calls send the next ones to threads again.
    """

    def __init__(self, function: Callable[P, Answer], threads: ThreadPoolExecutor) -> None:
        self._function, self._threads = function, threads
        self._is_inline, self._num_missing = False, NUM_FAST

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Call the function."""
        took_s: list[float] = []

        def timed() -> Answer:
            began = perf_counter()
            try:
                return self._function(*args, **kwargs)
            finally:
                took_s.append(perf_counter() - began)

        try:
            if self._is_inline:
                return timed()
            return await asyncio.get_running_loop().run_in_executor(self._threads, timed)
        finally:
            for seconds in took_s:  # none if it was cancelled
                self._count(seconds)

    def _count(self, took_s: float) -> None:
        change = NUM_FAST if took_s > LONG_S else 2 if took_s > FAST_S else -1
        self._num_missing = min(NUM_FAST, max(0, self._num_missing + change))
        if self._num_missing in (0, NUM_FAST):
            self._is_inline = self._num_missing == 0
