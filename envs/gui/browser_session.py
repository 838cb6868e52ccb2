"""One episode's share of a browser: its context, network and tabs, and notes on what pages did by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agentgym.envs.gui.browser import Browser
from agentgym.envs.gui.determinism import ContextKind, new_channel, page_script, world_script
from agentgym.envs.gui.network import EpisodeNetwork
from agentgym.envs.gui.site import Sites
from agentgym.envs.gui.tab import Tab, TabDeadError

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Dialog, Download, Page

_LONGEST_TEXT = 2000
_WINDOW_S = 2.0


class BrowserSession:
    """One episode's part of a browser; get one by :meth:`open`, ready for :meth:`begin`."""

    def __init__(self, browser: Browser, kind: ContextKind, context: BrowserContext, network: EpisodeNetwork) -> None:
        self.browser, self.kind, self.network = browser, kind, network
        self.context = context
        self.tabs: list[Tab] = []
        self.current = 0
        """Index in :attr:`tabs` of the tab that the agent looks at."""
        self._limits = browser.limits
        self._channel = new_channel()
        self._notes: list[str] = []
        self._num_dialogs = 0
        self._has_window = asyncio.Event()
        self._adopting: dict[Page, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_closed = self._is_opening = False
        self._kept_document: str | None = None

    @classmethod
    async def open(cls, browser: Browser, kind: ContextKind) -> BrowserSession:
        """Open a fresh context with an empty tab, which cannot reach any site yet.

        Raises:
            EnvError: the browser fails.
        """
        network = EpisodeNetwork()
        await network.start()
        try:
            session = cls(browser, kind, await browser.new_context(kind, network.url), network)
        except BaseException:
            await network.close()
            raise
        try:
            async with browser.failing("opening a tab"):
                session.context.on("page", session._on_page)
                await session.new_tab()
        except BaseException:
            await session.close()
            raise
        return session

    @property
    def tab(self) -> Tab:
        """The tab the agent looks at."""
        if not self.tabs:
            raise TabDeadError("it was closed")
        return self.tabs[self.current]

    @property
    def urls(self) -> list[str]:
        """Return the addresses of the tabs, in order."""
        return [tab.page.url for tab in self.tabs]

    async def begin(self, seed: int, sites: Sites) -> None:
        """Seed the context's random numbers and open its network to the sites."""
        self.network.open_to(sites)
        async with self.browser.failing("beginning an episode"):
            await self.context.add_init_script(page_script(self._channel, seed))

    async def keep(self) -> None:
        """Record the page as it has loaded, for :meth:`tidy` and :meth:`rewind`."""
        await self.tab.call("keep")
        self._kept_document = self.tab.document

    async def tidy(self) -> bool:
        """Return True if another episode may be played on the kept document, after this one is over.

        False if the agent left the document, opened another tab or stored something, or if anything is still loading.
        """
        if self._kept_document is None or len(self.tabs) != 1 or self._adopting or self.tab.is_dead:
            return False
        tab = self.tab
        async with self.browser.failing("tidying a page"):
            await tab.patiently(tab.page.mouse.move(-1, -1))  # so that it hovers over no element
            has_stored_nothing: bool = await tab.call("tidy")
        is_same = tab.document == self._kept_document and not tab.is_busy() and not tab.num_windows_asked
        return has_stored_nothing and is_same and not self._tasks

    async def rewind(self, seed: int) -> None:
        """Reset clock and timers to their state after the page had loaded, and seed the random numbers anew."""
        self.begin_turn()
        self.take_notes()
        await self.tab.call("rewind", seed & 0xFFFFFFFF)

    async def new_tab(self) -> None:
        """Open an empty tab and look at it."""
        self._is_opening = True
        page = await self.context.new_page()
        if page in self._adopting:
            await self._adopting[page]
        self._is_opening = False

    async def close_tab(self, index: int) -> None:
        """Close a tab; the one before it becomes current."""
        tab = self.tabs[index]
        await tab.page.close()
        self._forget(tab.page)

    def begin_turn(self) -> None:
        """Reset the count of dialogs for a new turn."""
        self._has_window.clear()
        self._num_dialogs = 0

    async def look(self, grant_ms: float, everything: bool) -> dict[str, Any]:
        """Call :meth:`Tab.settle` of the current tab; if it has crashed, replace it by an empty tab."""
        for _ in range(3):
            await self._adopt_all()
            try:
                if not self.tabs:
                    self.note("The last tab was closed; an empty one is open instead.")
                    await self.new_tab()
                before = self.tab
                seen = await before.settle(grant_ms, everything)
                await self._wait_for_window(before)
                if not self._adopting and before is self.tab:
                    return seen
            except TabDeadError as error:
                await self._replace(str(error))
        return await self.tab.settle(grant_ms, everything)

    def note(self, text: str) -> None:
        """Add a note to the agent's next observation."""
        if text not in self._notes:
            self._notes.append(text)

    def take_notes(self) -> list[str]:
        """Return the notes since the last call, and forget them."""
        asked = set().union(*(tab.hosts_asked for tab in self.tabs))
        for host in self.network.refused:
            if host in asked:  # the browser itself also requests its vendor's services
                self.note(
                    f"The browser did not reach {host}: it is not part of this task. "
                    f"Sites: {', '.join(self.network.hosts)}"
                )
        self.network.refused.clear()
        notes, self._notes = self._notes, []
        return notes

    async def close(self) -> None:
        """Close the context with all that belongs to it; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        for task in tuple(self._tasks):
            task.cancel()
        await self.browser.drop(self.context)
        await self.network.close()

    # ---------------------------------------------------------------------------------------------------- private

    async def _adopt_all(self) -> None:
        while self._adopting:
            await asyncio.gather(*self._adopting.values())

    async def _wait_for_window(self, tab: Tab) -> None:
        """Wait for the windows that the page has requested: each opens a moment later, or never."""
        if not tab.num_windows_asked:
            return
        tab.num_windows_asked = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(_WINDOW_S):
                await self._has_window.wait()

    async def _replace(self, reason: str) -> None:
        """Replace a dead tab by an empty one."""
        self.note(f"The tab crashed ({reason}) and was closed; an empty tab is open instead: goto a page of this task.")
        dead = self.tab
        async with self.browser.failing("replacing a crashed tab"):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.script_s):
                    await dead.page.close()
            self._forget(dead.page)
            await self.new_tab()

    def _on_page(self, page: Page) -> None:
        self._has_window.set()
        if len(self.tabs) + len(self._adopting) >= self._limits.num_tabs:
            self.note(f"A new tab was closed at once: no more than {self._limits.num_tabs} may be open.")
            self._start(page.close())
            return
        self._adopting[page] = self._start(self._adopt(page))

    async def _adopt(self, page: Page) -> None:
        page.on("dialog", lambda dialog: self._start(self._on_dialog(page, dialog)))
        page.on("download", self._on_download)
        page.on("close", self._forget)
        page.on("crash", self._on_crash)
        try:
            tab = await Tab.open(page, world_script(self._channel), self._limits.script_s, self.note)
            if not page.is_closed():
                if not self._is_opening:
                    self.note(f"A new tab was opened ({len(self.tabs) + 1}).")
                self.tabs.append(tab)
                self.current = len(self.tabs) - 1
        except Exception:
            if not page.is_closed():  # else it was closed as soon as opened
                raise
        finally:
            self._adopting.pop(page, None)

    def _forget(self, page: Page) -> None:
        at = next((number for number, tab in enumerate(self.tabs) if tab.page is page), None)
        if at is not None:
            self.tabs.pop(at).died("it was closed")
            self.current = max(0, self.current - (self.current >= at))

    def _on_crash(self, page: Page) -> None:
        for tab in self.tabs:
            if tab.page is page:
                tab.died("it ran out of memory, or its process was killed")

    async def _on_dialog(self, page: Page, dialog: Dialog) -> None:
        """Answer a dialog at once, since it blocks the page, and note its text for the agent."""
        self._num_dialogs += 1
        said = " ".join(dialog.message.split())
        if len(said) > _LONGEST_TEXT:
            said = f"{said[:_LONGEST_TEXT]} [cut: {len(said) - _LONGEST_TEXT} more characters]"
        kind, default = dialog.type, dialog.default_value
        if self._num_dialogs == self._limits.num_dialogs:
            self.note(f"The page opened {self._num_dialogs} dialogs in one turn; its script was stopped.")
            for tab in self.tabs:
                if tab.page is page:  # takes effect once the dialog is answered
                    self._start(tab.stop_scripts())
        with suppress(Exception):  # the page has gone meanwhile
            if kind == "prompt":
                await dialog.accept(default)
            else:
                await dialog.accept()
        if kind == "beforeunload":
            self.note("The page asked whether to leave; the answer was yes.")
        elif kind == "alert":
            self.note(f"The page said: {said!r}")
        else:
            self.note(f"The page asked: {said!r}; the answer was {repr(default) if kind == 'prompt' else 'OK'}.")

    def _on_download(self, download: Download) -> None:
        self.note(f"The page offered a file to download, {download.suggested_filename!r}; it was not saved.")

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        done: Callable[[asyncio.Task[Any]], None] = self._tasks.discard
        task.add_done_callback(done)
        return task
