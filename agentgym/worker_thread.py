"""One daemon thread per blocking environment.

A pool's threads are joined at interpreter exit and shared, so one hung environment would take a place for ever and
then hang the exit too. A thread per live environment is bounded by the rollout's concurrency, keeps thread affinity
(SQLite, browsers), and is simply left behind when it hangs.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any


class WorkerThread:
    """Runs calls one after another in its own daemon thread."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=f"env {name}", daemon=True).start()

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run ``function(*args)`` in the thread and give its result or exception."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if future.done():  # the caller has given up (timeout or cancellation)
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def job() -> None:
            try:
                result, error = function(*args), None
            except BaseException as raised:
                result, error = None, raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, error)

        self._jobs.put(job)
        return await future

    def stop(self) -> None:
        """End the thread after the jobs it has; a hung one is left behind."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
