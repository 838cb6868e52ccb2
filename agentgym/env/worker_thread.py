"""One daemon thread per blocking environment.

A pool's threads are joined at interpreter exit and shared, so one hung environment would take a place for ever and
then hang the exit too. A thread per live environment is bounded by the rollout's concurrency, keeps thread affinity
(SQLite, browsers), and is simply left behind when it hangs.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")


class WorkerThread:
    """Runs calls one after another in its own daemon thread."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._num_put, self._num_done = 0, 0  # each written by one thread alone: no lock needed
        threading.Thread(target=self._work, name=f"env {name}", daemon=True).start()

    async def call(self, function: Callable[..., Result], *args: object) -> Result:
        """Run ``function(*args)`` in the thread and give its result or exception."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def settle(deliver: Callable[[], None]) -> None:
            if not future.done():  # else the caller has given up (timeout or cancellation)
                deliver()

        def job() -> None:
            deliver: Callable[[], None]
            try:
                deliver = partial(future.set_result, function(*args))
            except StopIteration as error:  # a future refuses it
                deliver = partial(future.set_exception, RuntimeError(f"StopIteration: {error}"))
            except Exception as error:
                deliver = partial(future.set_exception, error)
            except BaseException as error:  # sys.exit() in an environment must not end the run
                deliver = partial(future.set_exception, RuntimeError(f"{type(error).__name__}: {error}"))
            self._num_done += 1
            with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
                loop.call_soon_threadsafe(settle, deliver)

        self._num_put += 1
        self._jobs.put(job)
        return await future

    @property
    def is_busy(self) -> bool:
        """True while a job runs or waits, so for ever if one hangs."""
        return self._num_put > self._num_done

    def stop(self) -> None:
        """End the thread after the jobs it has; a hung one is left behind."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


async def call_in_own_thread(function: Callable[..., Result], *args: object) -> Result:
    """Run one call in a daemon thread made for it, so that several run at the same time."""
    thread = WorkerThread("call")
    try:
        return await thread.call(function, *args)
    finally:
        thread.stop()


class LoopThread:
    """A daemon thread that runs an event loop, for connections that outlive the caller's loop."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name=name, daemon=True).start()

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start a coroutine there."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)


_loop_threads: dict[tuple[int, str], LoopThread] = {}
_lock = threading.Lock()


def loop_thread(name: str) -> LoopThread:
    """Return this process's thread of a name; a forked process has none of its parent's."""
    key = (os.getpid(), name)
    with _lock:
        if key not in _loop_threads:
            _loop_threads[key] = LoopThread(name)
        return _loop_threads[key]


def run_coroutine(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end and return its result, also where an event loop runs already, as in a notebook.

    There it runs in a loop of its own in another thread, and the caller waits for it.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1, "run_coroutine") as outside:
        return outside.submit(copy_context().run, asyncio.run, coroutine).result()
