"""Daemon threads for blocking environments, one thread each.

A thread pool would not do: a hung environment would occupy a shared thread for ever and block the interpreter's exit,
which joins the pool. The number of own threads is bounded by the rollout's concurrency. They keep thread affinity
(SQLite, browsers), and a hung one is abandoned.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, TypeVar

from agentgym.errors import error_text
from agentgym.spending import heard_by, listener

Result = TypeVar("Result")

_LOOK_S = 0.1
"""Seconds between looks whether a task that waits for another thread was cancelled."""
_interrupt: ContextVar[threading.Event | None] = ContextVar("_interrupt", default=None)
"""Set once the caller in another thread was interrupted."""


class WorkerThread:
    """A daemon thread that runs calls one after another."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._num_put, self._num_done = 0, 0  # each is written by one thread only, so no lock is needed
        threading.Thread(target=self._work, name=f"env {name}", daemon=True).start()

    async def call(self, function: Callable[..., Result], *args: object) -> Result:
        """Run ``function(*args)`` in the thread and return its result or raise its exception."""
        loop, hear = asyncio.get_running_loop(), listener()
        future: asyncio.Future[Result] = loop.create_future()

        def settle(deliver: Callable[[], None]) -> None:
            if not future.done():  # otherwise the caller has given up (time-out or cancellation)
                deliver()

        def job() -> None:
            deliver: Callable[[], None]
            try:
                with heard_by(hear):  # what an environment spends in its thread is that of the evaluation
                    deliver = partial(future.set_result, function(*args))
            except StopIteration as error:  # a future does not accept StopIteration
                deliver = partial(future.set_exception, RuntimeError(f"StopIteration: {error}"))
            except Exception as error:
                deliver = partial(future.set_exception, error)
            except BaseException as error:  # SystemExit from an environment must not end the run
                deliver = partial(future.set_exception, RuntimeError(error_text(error)))
            self._num_done += 1
            with suppress(RuntimeError):  # the loop was closed meanwhile, so no caller waits
                loop.call_soon_threadsafe(settle, deliver)

        self._num_put += 1
        self._jobs.put(job)
        return await future

    @property
    def is_busy(self) -> bool:
        """True while a job runs or waits; for ever if a job hangs."""
        return self._num_put > self._num_done

    def stop(self) -> None:
        """End the thread after its jobs; a hung thread is abandoned."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


async def call_in_own_thread(function: Callable[..., Result], *args: object) -> Result:
    """Run a call in a new daemon thread, so that several calls run at the same time."""
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
        """Start a coroutine in the loop and return its future."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)


_loop_threads: dict[tuple[int, str], LoopThread] = {}
_lock = threading.Lock()


def loop_thread(name: str) -> LoopThread:
    """Return this process's thread with a name. A forked process does not share its parent's threads."""
    key = (os.getpid(), name)
    with _lock:
        if key not in _loop_threads:
            _loop_threads[key] = LoopThread(name)
        return _loop_threads[key]


def run_coroutine(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine and return its result, even if an event loop is already running, as in a notebook.

    In that case it runs in a separate loop in another thread, and the caller waits for it. Ctrl-C, or a notebook's
    interrupt, cancels it, and so does the end of the caller's task.
    """
    try:
        caller = asyncio.current_task()
    except RuntimeError:
        return asyncio.run(coroutine)
    begun: Future[Callable[[], object]] = Future()
    interrupt = threading.Event()

    async def cancellable() -> Result:
        _interrupt.set(interrupt)
        task = asyncio.ensure_future(coroutine)
        begun.set_result(partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel))
        if interrupt.is_set():
            task.cancel()
        return await task

    with ThreadPoolExecutor(1, "run_coroutine") as outside:
        outside.submit(int).result()  # the pool does not join a thread if Ctrl-C comes while that starts
        try:
            return _result(outside.submit(copy_context().run, asyncio.run, cancellable()), caller)
        except (KeyboardInterrupt, asyncio.CancelledError):
            interrupt.set()  # before the look at begun: the coroutine may begin in between
            if begun.done():
                with suppress(RuntimeError):  # the loop has closed since
                    begun.result()()
            raise


def _result(future: Future[Result], caller: asyncio.Task[Any] | None) -> Result:
    """Wait for a future, or until the task that waits was cancelled, as the first Ctrl-C in ``asyncio.run`` does."""
    num_before = 0 if caller is None else caller.cancelling()
    while not wait([future], _LOOK_S).done:
        if caller is not None and caller.cancelling() > num_before:
            raise asyncio.CancelledError
    return future.result()


def is_interrupted() -> bool:
    """Return True if the running task was cancelled, as Ctrl-C does, and has not reached an ``await`` since."""
    interrupt = _interrupt.get()
    if interrupt is not None and interrupt.is_set():
        return True
    try:
        task = asyncio.current_task()
    except RuntimeError:  # not in an event loop
        return False
    return task is not None and task.cancelling() > 0
