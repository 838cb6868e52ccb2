"""The browsers of this process, and fresh contexts that are opened in advance.

A context is used for one episode and then discarded, so that nothing leaks from one episode into another. Opening a
context is slow since its first page needs a process, so the pool opens a few in advance. An environment whose pages can
restart by themselves may reuse an open page (:meth:`GuiEnv.kept_page`).
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from agentgym.envs.gui.browser import Browser, PageLimits
from agentgym.envs.gui.browser_session import BrowserSession
from agentgym.envs.gui.determinism import ContextKind
from agentgym.envs.gui.tab import TabDeadError
from agentgym.errors import ConfigError, EnvError, UsageError
from agentgym.settings import Settings

_EXIT_S = 5.0
_OPEN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig(Settings):
    """Settings of the browsers that this process shares.

    Example:
        >>> PoolConfig(num_ready=0)
        Traceback (most recent call last):
        agentgym.errors.ConfigError: num_ready, contexts_per_browser and episodes_per_browser must be at least 1
    """

    num_ready: int = 2
    """Contexts opened in advance, for each :class:`ContextKind` in use."""
    contexts_per_browser: int = 16
    """Most contexts of one browser. Further ones use another browser, so that a crash takes only some of them."""
    episodes_per_browser: int = 1000
    """Episodes after which a browser is replaced, since the memory of long-lived browsers grows."""
    num_kept: int = 8
    """Most pages kept open for another episode, for environments with :meth:`GuiEnv.kept_page`."""
    limits: PageLimits = PageLimits()

    def __post_init__(self) -> None:
        if min(self.num_ready, self.contexts_per_browser, self.episodes_per_browser) < 1:
            raise ConfigError("num_ready, contexts_per_browser and episodes_per_browser must be at least 1")


class BrowserPool:
    """Hands out browser sessions. Call its methods only in the driver's loop."""

    def __init__(self, config: PoolConfig) -> None:
        self.config = config
        self._browsers: list[Browser] = []
        self._ready: dict[ContextKind, list[asyncio.Task[BrowserSession]]] = {}
        self._kept: list[tuple[tuple[ContextKind, str], asyncio.Task[BrowserSession | None]]] = []
        self._launching = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    async def acquire(self, kind: ContextKind) -> BrowserSession:
        """Return a session with a fresh context; give it back with :meth:`release`.

        Raises:
            EnvError: no browser starts, or it fails.
            MissingExtraError: Playwright is not installed.
        """
        session = await self._next_ready(kind) or await self._open(kind)
        session.browser.num_episodes += 1
        return session

    def prepare(self, kind: ContextKind) -> None:
        """Start opening contexts for the next episodes. Call it once an episode has begun, to not slow its start."""
        ready = self._ready.setdefault(kind, [])
        while len(ready) < self.config.num_ready:
            opening = asyncio.ensure_future(self._open(kind))
            opening.add_done_callback(_note_failure)
            ready.append(opening)

    async def take_kept(self, kind: ContextKind, page: str) -> BrowserSession | None:
        """Return a session kept on this page, ready for :meth:`BrowserSession.rewind`; None if there is none."""
        while (at := next((at for at, (key, _) in enumerate(self._kept) if key == (kind, page)), None)) is not None:
            session = await self._kept.pop(at)[1]
            if session is not None and session.browser.is_alive and not session.tab.is_dead:
                session.browser.num_episodes += 1
                return session
            if session is not None:
                self.release(session)
        return None

    def keep(self, session: BrowserSession, page: str) -> None:
        """Keep a session for another episode on its page if it is tidy, else discard it; does not wait."""
        if self._is_old(session.browser) or not self.config.num_kept:
            self.release(session)
            return
        self._kept.append(((session.kind, page), asyncio.ensure_future(self._tidied(session))))
        if len(self._kept) > self.config.num_kept:
            self._start(self._throw_away_kept(self._kept.pop(0)[1]))

    def release(self, session: BrowserSession) -> None:
        """Discard a session's context; does not wait."""
        self._start(self._throw_away(session))

    async def close(self) -> None:
        """End all browsers; the next :meth:`acquire` starts a new one."""
        ready, self._ready = [task for tasks in self._ready.values() for task in tasks], {}
        kept, self._kept = [task for _, task in self._kept], []
        for task in (*ready, *kept):
            task.cancel()
        await asyncio.gather(*ready, *kept, *self._closing, return_exceptions=True)
        browsers, self._browsers = self._browsers, []
        await asyncio.gather(*(browser.close() for browser in browsers))

    # ---------------------------------------------------------------------------------------------------- private

    async def _next_ready(self, kind: ContextKind) -> BrowserSession | None:
        while tasks := self._ready.get(kind):
            opening = tasks.pop(0)
            with suppress(EnvError):
                try:
                    session = await asyncio.shield(opening)
                except asyncio.CancelledError:
                    if not opening.done():  # the waiting caller was cancelled; the next one gets the session
                        self._ready.setdefault(kind, []).insert(0, opening)
                    raise
                if session.browser.is_alive and not session.tab.is_dead:
                    return session
                await session.close()
        return None

    async def _open(self, kind: ContextKind) -> BrowserSession:
        browser = await self._browser()
        return await browser.unless_gone("opening a browser context", BrowserSession.open(browser, kind), _OPEN_S)

    async def _browser(self) -> Browser:
        """Return a browser with room for a context; start one if there is none."""
        async with self._launching:
            for dead in [browser for browser in self._browsers if not browser.is_alive]:
                self._browsers.remove(dead)
                await dead.close()
            for browser in self._browsers:
                if not self._is_old(browser) and browser.num_contexts < self.config.contexts_per_browser:
                    return browser
            self._browsers.append(await Browser.launch(self.config.limits))
            return self._browsers[-1]

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        closing = asyncio.ensure_future(work)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _tidied(self, session: BrowserSession) -> BrowserSession | None:
        with suppress(EnvError, TabDeadError):
            if await session.browser.unless_gone("tidying a page", session.tidy(), _OPEN_S):
                return session
        await self._throw_away(session)
        return None

    async def _throw_away_kept(self, kept: asyncio.Task[BrowserSession | None]) -> None:
        session = await kept
        if session is not None:
            await self._throw_away(session)

    async def _throw_away(self, session: BrowserSession) -> None:
        await session.close()
        browser = session.browser
        if self._is_old(browser) and not browser.num_contexts and browser in self._browsers:
            self._browsers.remove(browser)
            await browser.close()

    def _is_old(self, browser: Browser) -> bool:
        return browser.num_episodes >= self.config.episodes_per_browser


def _note_failure(opening: asyncio.Task[BrowserSession]) -> None:
    """Retrieve the exception of a task that may have no waiter, or asyncio would print it at the end of the process."""
    if not opening.cancelled():
        opening.exception()


_pools: dict[tuple[Driver, PoolConfig], BrowserPool] = {}


async def shared_pool(config: PoolConfig) -> BrowserPool:
    """Return this process's pool of browsers with these settings. Call it in the driver's loop."""
    return _pools.setdefault((driver(), config), BrowserPool(config))


async def _close_all(timeout_s: float | None = None) -> None:
    mine = [key for key in _pools if key[0] is driver()]
    async with asyncio.timeout(timeout_s):
        await asyncio.gather(*(_pools.pop(key).close() for key in mine))


def close_browsers() -> None:
    """End all browsers of this process; the next episode starts a new one."""
    driver().call(_close_all())


def _at_exit() -> None:
    if any(key[0] is driver() for key in _pools):
        with suppress(Exception):  # the guards kill browsers that this cannot close
            driver().call(_close_all(_EXIT_S))


atexit.register(_at_exit)


# ------------------------------------------------------------------- the one thread of a process that talks to browsers
# Playwright's objects belong to the event loop that made them, while environments are used from many: rollouts, tests,
# Gymnasium's synchronous calls. So one daemon thread runs one loop for ever, every environment's work on pages runs
# there, and callers, synchronous or not, wait for it. What runs there must not block; other work goes to
# ``asyncio.to_thread``.

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
        """Run a coroutine in the loop and wait for it, from any thread except the loop's own.

        Raises:
            UsageError: it is called in the loop, where it would wait for itself.
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
        """Run a coroutine in the driver's loop and await it from any loop; cancelling the caller cancels the work."""
        if asyncio.get_running_loop() is self.loop:
            return await work
        return await asyncio.wrap_future(self._submit(work))

    def _submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)


_drivers: dict[int, Driver] = {}
_lock = threading.Lock()


def driver() -> Driver:
    """Return this process's driver; a forked child gets its own."""
    with _lock:
        if os.getpid() not in _drivers:
            _drivers[os.getpid()] = Driver()
        return _drivers[os.getpid()]
