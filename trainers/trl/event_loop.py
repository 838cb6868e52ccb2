"""An event loop in a thread of its own, so that TRL's synchronous trainer can wait for asynchronous environments."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentgym.errors import ClosedError
from agentgym.trainers.distributed.devices import on_this_device

Result = TypeVar("Result")


class EventLoopThread:
    """One loop for as long as its environments live: what they hold open belongs to the loop it was opened in.

    A thread of its own also works where the caller's thread runs a loop already, as in a notebook.

    Example:
        >>> loop = EventLoopThread("example")
        >>> loop.run(asyncio.sleep(0, result=3))
        3
        >>> loop.stop()
    """

    def __init__(self, name: str) -> None:
        self.is_stopped = False
        self._loop = asyncio.new_event_loop()
        threading.Thread(
            target=on_this_device(self._loop.run_forever), name=f"event loop of {name}", daemon=True
        ).start()

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        """Wait for a coroutine; what it raises is raised here. It is cancelled if the caller stops waiting.

        Raises:
            TimeoutError: it took longer than ``timeout_s``, or something in the loop blocks it.
            ClosedError: after :meth:`stop`.
        """
        if self.is_stopped:
            work.close()
            raise ClosedError("the event loop was used after it was stopped")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the thread; what still runs in it is left behind."""
        self.is_stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
