"""One Chromium process with many contexts. A guard process kills it when its owner ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agentgym.envs.gui.chromium import UNWANTED, find_chromium, flags
from agentgym.errors import EnvError, EnvTimeoutError, boundary, require_extra
from agentgym.processes import guard

if TYPE_CHECKING:
    from playwright.async_api import Browser as PlaywrightBrowser
    from playwright.async_api import BrowserContext, Playwright

    from agentgym.envs.gui.determinism import ContextKind

Result = TypeVar("Result")
_LAUNCH_S = 60.0
_CLOSE_S = 10.0
_GRACE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLimits:
    """Limits of one page. A page that exceeds one is stopped or crashes; other pages are unaffected.

    Example:
        >>> PageLimits(memory_mb=512).js_heap_mb
        512
    """

    js_heap_mb: int = 512
    memory_mb: int = 1024
    """Private memory of a page's process in MB, checked four times a second; a process with more is killed."""
    script_s: float = 5.0
    """Wall seconds for which a script may keep the page from responding."""
    load_s: float = 15.0
    """Wall seconds a page may take to load."""
    num_tabs: int = 5
    num_dialogs: int = 10
    """Most dialogs in one turn; at one more, the script that opens them is stopped."""


class Browser:
    """A running Chromium; get one by :meth:`launch`."""

    def __init__(self, playwright: Playwright, browser: PlaywrightBrowser, limits: PageLimits) -> None:
        self._playwright, self._browser = playwright, browser
        self.limits = limits
        self.num_contexts = 0
        self.num_episodes = 0
        self._gone = asyncio.Event()
        browser.on("disconnected", lambda _: self._gone.set())

    @classmethod
    async def launch(cls, limits: PageLimits) -> Browser:
        """Start a Chromium.

        Raises:
            EnvError: there is no Chromium, or it does not start.
            MissingExtraError: Playwright is not installed.
        """
        require_extra("a browser", "gui", "playwright")
        from playwright.async_api import async_playwright

        chromium = find_chromium()
        with boundary(EnvError, f"starting {chromium}"):
            playwright = await async_playwright().start()
            try:
                with tempfile.TemporaryDirectory(prefix="agentgym-") as folder:
                    browser = await playwright.chromium.launch(
                        executable_path=_guarded(chromium, limits.memory_mb, Path(folder)),
                        args=flags(js_heap_mb=limits.js_heap_mb, viewport=(1024, 768)),
                        ignore_default_args=list(UNWANTED),
                        timeout=1000 * _LAUNCH_S,
                        handle_sigint=False,
                        handle_sigterm=False,
                        handle_sighup=False,
                    )
            except BaseException:
                await playwright.stop()
                raise
        return cls(playwright, browser, limits)

    @property
    def is_alive(self) -> bool:
        """False after the browser has crashed or was closed."""
        return self._browser.is_connected()

    @asynccontextmanager
    async def failing(self, what: str) -> AsyncIterator[None]:
        """Turn failures inside the block into :class:`EnvError`, so that every context of a dead browser reports its
        death.
        """
        from playwright.async_api import Error

        try:
            yield
        except Error as error:
            if not self.is_alive:
                raise EnvError(f"{what}: the browser has crashed or was killed") from error
            raise EnvError(f"{what}: {error}") from error
        except TimeoutError as error:
            raise EnvTimeoutError(f"{what}: no answer from the browser") from error

    async def unless_gone(self, what: str, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        """Await work on this browser, or raise if it dies: some of Playwright's calls never return in that case.

        Raises:
            EnvError: the browser is gone.
            EnvTimeoutError: it took longer than that.
        """
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait((task, gone), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and self._gone.is_set():  # most calls fail by themselves with a more precise error
                await asyncio.wait((task,), timeout=_GRACE_S)
            if task.done():
                return task.result()
            if self._gone.is_set():
                raise EnvError(f"{what}: the browser has crashed or was killed")
            raise EnvTimeoutError(f"{what}: no answer from the browser in {timeout_s:g} s")
        finally:
            task.cancel()
            gone.cancel()

    async def new_context(self, kind: ContextKind, proxy_url: str) -> BrowserContext:
        """Return a fresh context: it shares no cookies, storage, cache or history with others."""
        async with self.failing("opening a browser context"):
            context = await self._browser.new_context(**kind.options(), proxy={"server": proxy_url})
        self.num_contexts += 1
        return context

    async def drop(self, context: BrowserContext) -> None:
        """Close a context; does nothing if the browser is dead."""
        self.num_contexts -= 1
        with suppress(Exception):
            async with asyncio.timeout(_CLOSE_S):
                await context.close()

    async def close(self) -> None:
        """End the browser and Playwright's driver."""
        for closing in (self._browser.close(), self._playwright.stop()):
            with suppress(Exception):
                async with asyncio.timeout(_CLOSE_S):
                    await closing


def _guarded(chromium: Path, memory_mb: int, folder: Path) -> Path:
    """Write a program that starts Chromium under :mod:`agentgym.processes.guard`, and return its path."""
    owner = os.getpid()
    words = [sys.executable, "-I", "-S", guard.__file__, str(owner), guard.start_ticks(owner), str(memory_mb)]
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in [*words, str(chromium)])
    program = folder / "chromium"
    program.write_text(f'#!{shutil.which("sh") or "/bin/sh"}\nexec {quoted} "$@"\n', encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program
