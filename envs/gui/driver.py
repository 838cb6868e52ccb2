"""The one thread of a process that talks to browsers.

Playwright's objects belong to the event loop that made them, while environments are used from many: rollouts, tests,
Gymnasium's synchronous calls. So one daemon thread runs one loop for ever, every environment's work on pages runs
there, and callers, synchronous or not, wait for it. What runs there must not block; other work goes to
``asyncio.to_thread``.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from agentgym.errors import UsageError

Result = TypeVar("Result")


class Driver:
    """An event loop in a thread of its own; get the process's by :func:`driver`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="browsers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run it in the loop and wait, from any thread but the loop's own.

        Raises:
            UsageError: from code that runs in the loop, which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError("this runs where browsers are driven; use the coroutine (areset, astep, aclose) instead")
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while waiting
            raise

    async def acall(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run it in the loop and await it, from any loop; cancelling the caller cancels the work."""
        if asyncio.get_running_loop() is self.loop:
            return await work
        return await asyncio.wrap_future(self._submit(work))

    def _submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)


_drivers: dict[int, Driver] = {}
_lock = threading.Lock()


def driver() -> Driver:
    """This process's driver; a forked child gets one of its own."""
    with _lock:
        if os.getpid() not in _drivers:
            _drivers[os.getpid()] = Driver()
        return _drivers[os.getpid()]
