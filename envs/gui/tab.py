"""One browser tab: call into its isolated world, wait until it has settled, and recover when it hangs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from agentgym.envs.gui.determinism import WORLD
from agentgym.envs.gui.frames import FrameGoneError, Frames
from agentgym.errors import EnvError, EnvTimeoutError

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Page

Result = TypeVar("Result")
_GONE = ("uniqueContextId not found", "Cannot find context", "context was destroyed", "navigated or closed")
_ENDLESS = ("EventSource", "Ping", "WebSocket")  # requests that may stay open while a page is settled
_MOST_TRIES = 20
_STOP_S = 2.0


class PageScriptError(EnvError):
    """An expression that a page's own world was asked for throws."""


class TabDeadError(Exception):
    """A page's process has crashed, was killed for its memory, or hung for good; the browser is still alive."""


class Tab:
    """A page with a DevTools session of its own; get one by :meth:`open`.

    Args:
        timeout_s: wall seconds after which a script of the page that does not end is stopped.
        tell: receives notes for the agent, such as that a script was stopped.
    """

    def __init__(self, page: Page, cdp: CDPSession, timeout_s: float, tell: Callable[[str], None]) -> None:
        self.page, self._cdp, self._timeout_s, self._tell = page, cdp, timeout_s, tell
        self._frame = ""
        self._worlds: dict[str, str] = {}  # frame -> unique id of its isolated world
        self._detached: set[str] = set()
        self._frames = Frames(self)
        self._loading: set[str] = set()
        self._requests: dict[str, str] = {}  # request -> the frame it is for
        self._changed = asyncio.Event()
        self._dead = ""
        self._gone = asyncio.Event()
        self.num_windows_asked = 0
        """Number of windows that the page has requested after an action of the agent."""
        self.hosts_asked: set[str] = set()
        """Hosts that the tab's pages have requested, with a port unless it is 80."""

    @classmethod
    async def open(cls, page: Page, script: str, timeout_s: float, tell: Callable[[str], None]) -> Tab:
        """Return a tab for a page; ``script`` defines ``agentgym`` in its isolated world."""
        tab = cls(page, await page.context.new_cdp_session(page), timeout_s, tell)
        tab._subscribe()
        given = {"source": script, "worldName": WORLD, "runImmediately": True}
        answers: list[Any] = await asyncio.gather(
            tab._cdp.send("Page.getFrameTree"),
            tab._cdp.send("Page.enable"),
            tab._cdp.send("Network.enable"),
            tab._cdp.send("Runtime.enable"),
            tab._cdp.send("Page.addScriptToEvaluateOnNewDocument", given),
        )
        tab._frame = answers[0]["frameTree"]["frame"]["id"]
        return tab

    @property
    def is_dead(self) -> bool:
        """True after its process has ended."""
        return bool(self._dead)

    def is_busy(self) -> bool:
        """True while anything is loading."""
        return bool(self._loading or self._requests) and not self._dead

    async def goto(self, url: str, timeout_s: float) -> None:
        """Open a URL; raises Playwright's error where that fails."""
        async with asyncio.timeout(timeout_s):
            await self.page.goto(url, wait_until="load", timeout=1000 * timeout_s)

    @property
    def document(self) -> str | None:
        """Return a unique name of the open document; None while a document is being created."""
        return self._worlds.get(self._frame)

    async def evaluate(self, expression: str) -> object:
        """Evaluate an expression in the page's own world, and return its JSON value.

        Raises:
            PageScriptError: the expression throws.
            TabDeadError: the page's process is gone, or does not answer.
        """
        given = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer: dict[str, Any] = await self.patiently(self._cdp.send("Runtime.evaluate", given))
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            said = details.get("exception", {}).get("description", details["text"])
            raise PageScriptError(f"evaluating {expression[:80]!r}: {said}")
        return answer["result"].get("value")

    async def call(self, name: str, *arguments: object) -> Any:
        """Call a function of ``hands.js`` in the isolated world of the main frame.

        If a script keeps the page from responding, it is stopped and the call continues.

        Raises:
            TabDeadError: the page's process is gone, or does not answer even then.
        """
        return await self.patiently(self._call(self._frame, name, arguments))

    async def on_element(self, name: str, id: str, *arguments: object) -> dict[str, Any]:
        """Call a function of ``hands.js`` on an element of any frame; points are those of the tab.

        Raises:
            TabDeadError: as for :meth:`call`.
        """
        return await self.patiently(self._frames.on_element(name, id, arguments))

    async def source(self, max_characters: int) -> str:
        """Return the markup of the page and of its frames, without scripts and styles; a cut is marked."""
        (_, page), *inner = await self.patiently(self._frames.sources())
        text = "\n".join([page, *(f"<!-- in a frame: {url[:200]} -->\n{markup}" for url, markup in inner)])
        return text if len(text) <= max_characters else f"{text[:max_characters]} [cut: {len(text)} characters in all]"

    def has_document(self, frame: str) -> bool:
        """Return True if the document of a frame can be read."""
        return frame in self._worlds

    async def call_in(self, frame: str, name: str, *arguments: object) -> Any:
        """Call a function of ``hands.js`` in a frame's own isolated world; an empty text is the main frame.

        Raises:
            FrameGoneError: the frame is not in the tab any more.
        """
        return await self._call(frame or self._frame, name, arguments)

    async def frame_of(self, around: str, number: int) -> str:
        """Return the id of a frame that the last walk of a document numbered, or an empty text."""
        from playwright.async_api import Error

        ask = {"expression": f'agentgym("stranger", {number})', "awaitPromise": True}
        try:
            world = self._worlds[around or self._frame]
            answer = await self._cdp.send("Runtime.evaluate", {**ask, "uniqueContextId": world})
            node = await self._cdp.send("DOM.describeNode", {"objectId": answer["result"]["objectId"]})
        except (Error, KeyError):  # the page has changed meanwhile
            return ""
        return str(node["node"].get("frameId", ""))

    async def patiently(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await work that needs the page to respond; a script that blocks the page is stopped once.

        Raises:
            TabDeadError: the page's process is gone, or does not answer even then.
        """
        from playwright.async_api import Error

        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(self._gone.wait())
        either: set[asyncio.Future[Any]] = {task, gone}
        try:
            for is_last in (False, True):
                await asyncio.wait(either, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if task.done() or gone.done():
                    break
                if is_last:
                    self.died("it did not answer")
                else:
                    self._tell(f"A script of the page did not end within {self._timeout_s:g} s and was stopped.")
                    await self.stop_scripts()
            if self._dead:
                raise TabDeadError(self._dead)
            return task.result()
        except Error:
            if not self.page.is_closed():
                raise
            raise TabDeadError("it was closed") from None
        finally:
            task.cancel()
            gone.cancel()

    async def go_back(self) -> bool:
        """Go one entry back in the tab's history; return False if there is none."""
        history = await self._cdp.send("Page.getNavigationHistory")
        at, entries = history["currentIndex"], history["entries"]
        if at < 1 or (at == 1 and entries[0]["url"] == "about:blank"):  # a tab's history begins with this blank page
            return False
        self._loading.add(self._frame)  # until it says that it has loaded
        await self._cdp.send("Page.navigateToHistoryEntry", {"entryId": entries[at - 1]["id"]})
        return True

    async def settle(self, grant_ms: float, everything: bool) -> dict[str, object]:
        """Wait until the page has settled, and return its contents.

        First wait for what the last action started: navigation, and requests that make progress within the tab's time.
        Then advance the page's clock by ``grant_ms``, and wait for what that started.
        """
        deadline = time.monotonic() + self._timeout_s
        await self._rest(deadline)
        seen = await self._advance(grant_ms, everything)
        while self.is_busy() and time.monotonic() < deadline:
            await self._rest(deadline)
            seen = await self._advance(0, everything)
        return seen

    async def screenshot(self) -> bytes:
        """Return the viewport as a PNG."""
        return await self.patiently(self.page.screenshot(animations="allow", caret="hide", scale="css"))

    async def stop_scripts(self) -> None:
        """Stop the script that runs in the page; the page itself stays."""
        from playwright.async_api import Error

        with suppress(TimeoutError, Error):  # it is already being stopped, or the page is gone
            async with asyncio.timeout(_STOP_S):
                await self._cdp.send("Runtime.terminateExecution")

    def died(self, reason: str) -> None:
        """Note that the page's process is gone."""
        self._dead = reason
        self._gone.set()
        self._changed.set()

    # ---------------------------------------------------------------------------------------------------- private

    async def _rest(self, deadline: float) -> None:
        """Wait until the timers that are due have run and nothing is loading."""
        await self.call("advance", 0)
        while self.is_busy() and (left := deadline - time.monotonic()) > 0:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()
            if not self.is_busy():
                await self.call("advance", 0)
        if self.is_busy():
            self._tell("The page is still loading.")
            self._loading.clear()
            self._requests.clear()

    async def _advance(self, grant_ms: float, everything: bool) -> dict[str, object]:
        # frames of another origin follow the same clock
        for frame in [frame for frame in self._worlds if frame != self._frame]:
            with suppress(TimeoutError, EnvError, FrameGoneError):
                async with asyncio.timeout(self._timeout_s):
                    if not await self._call(frame, "is_reached", ()):
                        await self._call(frame, "advance", (grant_ms,))
        seen: dict[str, Any] = await self.call("look", grant_ms, everything)
        return await self.patiently(self._frames.fill_in(seen, everything))

    async def _call(self, frame: str, name: str, arguments: tuple[object, ...]) -> object:
        from playwright.async_api import Error

        given = ", ".join(json.dumps(value) for value in (name, *arguments))
        for _ in range(_MOST_TRIES):
            world = await self._world(frame)
            try:
                answer = await self._cdp.send(
                    "Runtime.evaluate",
                    {
                        "expression": f"agentgym({given})",
                        "uniqueContextId": world,
                        "returnByValue": True,
                        "awaitPromise": True,
                    },
                )
            except Error as error:
                if self._dead:
                    raise TabDeadError(self._dead) from None
                if not any(text in str(error) for text in _GONE):
                    raise EnvError(f"the browser failed: {error}") from error
                if self._worlds.get(frame) == world:
                    del self._worlds[frame]
                continue
            if "exceptionDetails" in answer:
                said = answer["exceptionDetails"].get("exception", {}).get("description", "")
                if "agentgym is not" in said:  # a document that is still being created
                    await asyncio.sleep(0.01)
                    continue
                raise EnvError(f"looking at the page failed: {name}: {said or answer['exceptionDetails']['text']}")
            return answer["result"].get("value")
        raise EnvTimeoutError(f"the page navigates without end; {name} found no document to look at")

    async def _world(self, frame: str) -> str:
        """Return the isolated world of a frame's current document; wait for it during a navigation."""
        while frame not in self._worlds:
            if self._dead:
                raise TabDeadError(self._dead)
            if frame in self._detached:
                raise FrameGoneError(frame)
            self._changed.clear()
            await self._changed.wait()
        return self._worlds[frame]

    def _subscribe(self) -> None:
        on: Callable[[str, Callable[[dict[str, Any]], object]], None] = self._listen
        on("Runtime.executionContextCreated", self._on_world)
        on("Runtime.executionContextDestroyed", self._on_world_gone)
        on("Runtime.executionContextsCleared", lambda _: self._worlds.clear())
        on("Page.frameStartedLoading", lambda event: self._loading.add(event["frameId"]))
        on("Page.frameRequestedNavigation", self._on_requested)
        on("Page.frameStoppedLoading", lambda event: self._loading.discard(event["frameId"]))
        on("Page.navigatedWithinDocument", lambda event: self._loading.discard(event["frameId"]))
        on("Page.frameDetached", self._on_detached)
        on("Page.windowOpen", self._on_window)
        on("Page.downloadWillBegin", lambda event: self._loading.discard(event["frameId"]))
        on("Network.requestWillBeSent", self._on_request)
        on("Network.webSocketCreated", lambda event: self._note_host(event["url"]))
        on("Network.loadingFinished", lambda event: self._requests.pop(event["requestId"], None))
        on("Network.loadingFailed", lambda event: self._requests.pop(event["requestId"], None))

    def _listen(self, event: str, handle: Callable[[dict[str, object]], object]) -> None:
        def handled(given: dict[str, object]) -> None:
            handle(given)
            self._changed.set()

        self._cdp.on(event, handled)

    def _on_world(self, event: dict[str, Any]) -> None:
        context = event["context"]
        if context["name"] == WORLD:
            self._worlds[context["auxData"]["frameId"]] = context["uniqueId"]

    def _on_world_gone(self, event: dict[str, object]) -> None:
        gone = event.get("executionContextUniqueId")
        self._worlds = {frame: world for frame, world in self._worlds.items() if world != gone}

    def _on_requested(self, event: dict[str, Any]) -> None:
        self._note_host(event["url"])
        if event.get("disposition", "currentTab") == "currentTab":
            self._loading.add(event["frameId"])

    def _on_detached(self, event: dict[str, object]) -> None:
        gone = event["frameId"]
        self._loading.discard(gone)
        if event.get("reason") != "swap":  # a swapped one gets another process, and stays
            self._detached.add(str(gone))
            self._worlds.pop(str(gone), None)
        self._requests = {request: frame for request, frame in self._requests.items() if frame != gone}

    def _on_window(self, event: dict[str, object]) -> None:
        self.num_windows_asked += bool(event["userGesture"])  # others are not opened

    def _on_request(self, event: dict[str, Any]) -> None:
        url = event["request"]["url"]
        self._note_host(url)
        if event.get("type") not in _ENDLESS and not url.startswith("data:"):
            self._requests[event["requestId"]] = event.get("frameId", "")

    def _note_host(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        host = rest.partition("/")[0].partition("?")[0].lower()
        if scheme in ("https", "wss") and ":" not in host:
            host += ":443"
        self.hosts_asked.add(host.removesuffix(":80"))
