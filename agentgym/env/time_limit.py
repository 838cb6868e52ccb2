"""Time limits for code in the main thread, which no other thread can end."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
import threading
import time
from asyncio import base_events
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from types import FrameType
from typing import Any, Generic, TypeVar

from agentgym.error_places import is_of_a_library, is_ours
from agentgym.errors import HungError

T = TypeVar("T")
# In Python 3.11, the signal module tries to convert the old handler to an enum, and formats it for an error that it
# discards. With asyncio's handler, that formats the loop's whole task, which takes longer than most environment
# steps.
_raw: Any = signal if sys.version_info >= (3, 12) else importlib.import_module("_signal")
AGAIN_S = 1.0
"""Seconds after which the error is raised again in code that caught it."""


@contextmanager
def time_limit(limit_s: float | None, what: str) -> Iterator[None]:
    """Interrupt the ``with`` block when it takes too long.

    Like Ctrl-C, the alarm signal ends sleeps, reads and Python loops, but not a computation in an extension module.
    Signals reach only the main thread: in other threads, without ``SIGALRM``, and with None, there is no limit.

    Raises:
        HungError: the limit is exceeded; the message names ``what`` and the running line.

    Example:
        >>> with time_limit(0.01, "the doctest"):
        ...     time.sleep(60)
        Traceback (most recent call last):
        agentgym.errors.HungError: the doctest: not done after 0.01 s, at <doctest ...
    """
    is_main = threading.current_thread() is threading.main_thread()
    if limit_s is None or not is_main or not hasattr(signal, "SIGALRM"):
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise HungError(f"{what}: not done after {limit_s:g} s{_at(frame)}")

    began = time.monotonic()
    handlers = {signal.SIGALRM: _raw.signal(signal.SIGALRM, interrupt)}
    if callable(_raw.getsignal(signal.SIGINT)):
        # asyncio's handler asks the loop to end, which the code inside blocks
        handlers[signal.SIGINT] = _raw.signal(signal.SIGINT, signal.default_int_handler)
    outer_s, interval_s = signal.setitimer(signal.ITIMER_REAL, limit_s, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            _raw.signal(number, handler)
        if outer_s:  # an outer limit continues; if it has passed meanwhile, it fires at once
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, outer_s - (time.monotonic() - began)), interval_s)


def _at(frame: FrameType | None) -> str:
    """Return the line that hangs: of the user or of agentgym, in the running code or in a coroutine that waits."""
    if frame is None:
        return ""
    found = next(_outward(frame), None) or min(_waiting(), key=_by_owner, default=frame)
    return f", at {found.f_code.co_filename}:{found.f_lineno} in {found.f_code.co_name}"


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers, without those of libraries; none outside the running event loop."""
    while frame is not None and frame.f_code.co_filename != base_events.__file__:
        if not is_of_a_library(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _waiting() -> Iterator[FrameType]:
    """Yield the innermost frame of each task of the running event loop, without those of libraries."""
    for task in asyncio.all_tasks() if asyncio._get_running_loop() else ():
        frames = [frame for frame in _awaited(task.get_coro()) if not is_of_a_library(frame.f_code.co_filename)]
        yield from frames[-1:]


def _awaited(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine and of those that it awaits."""
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield frame
        coroutine = coroutine.cr_await


def _by_owner(frame: FrameType) -> tuple[bool, str, int]:
    """Return a key that orders a user's frames before agentgym's."""
    return is_ours(frame.f_code.co_filename), frame.f_code.co_filename, frame.f_lineno


@contextmanager
def limit_around() -> Iterator[None]:
    """Apply the limit of the enclosing :class:`Limited`, for tasks that were started inside it."""
    around = _AROUND.get()
    with nullcontext() if around is None else around.stretch():
        yield


class Limited(Awaitable[T], Generic[T]):
    """An awaitable that may block the event loop only for a limited time without a break; see :func:`time_limit`.

    Time spent waiting does not count; ``asyncio.timeout`` limits it.
    """

    def __init__(self, awaitable: Awaitable[T], limit_s: float | None, what: str) -> None:
        self._awaitable, self._limit_s, self._what = awaitable, limit_s, what
        self.hung: HungError | None = None
        """Error that any task inside raised."""

    @contextmanager
    def stretch(self) -> Iterator[None]:
        """Limit a block of code that does not wait."""
        try:
            with time_limit(self._limit_s, self._what):
                yield
        except HungError as error:
            self.hung = error
            raise

    def __await__(self) -> Generator[object, object, T]:
        token = _AROUND.set(self)
        try:
            return (yield from self._in_slices())
        finally:
            _AROUND.reset(token)

    def _in_slices(self) -> Generator[object, object, T]:
        inner: Any = self._awaitable.__await__()
        proceed: Callable[[], Any] = partial(next, inner)
        while True:
            try:
                with self.stretch():
                    waits_for = proceed()
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            try:
                sent = yield waits_for
            except BaseException as error:
                proceed = partial(inner.throw, error)
            else:
                proceed = partial(next, inner) if sent is None else partial(inner.send, sent)


_AROUND: ContextVar[Limited[Any] | None] = ContextVar("_AROUND", default=None)
