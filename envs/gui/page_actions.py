"""Tools that act on the browser around a page: scrolling, history, addresses, time and tabs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urljoin, urlsplit

from pydantic import Field

from agentgym.envs.gui.browser_session import BrowserSession
from agentgym.envs.gui.tab import Tab
from agentgym.envs.gui.tree import Tree
from agentgym.errors import ToolError
from agentgym.tool import tool

# ------------------------------------------------ base of the tools: find elements, point at them, and explain failures

_MOST_SHOWN = 40
_SHOWN = 200  # characters of what a text box holds


class Hands:
    """Base of the tools: find elements of the current tab and point at them. Coroutines run in the driver's loop."""

    clicks_through_covers: bool = False
    """True if a click reaches an element that others cover completely, which a person could not click."""
    sees_all_elements: bool = False
    """True to give an id to every element without children, for pages whose scripts listen on inconspicuous elements.
    """
    wait_ms: float = 0.0
    """Milliseconds of the page's time that the agent has asked to wait in this turn."""
    answer: str | None = None
    task_files: Mapping[str, bytes] = {}
    """Files of the current task by name, which ``upload`` gives to a page."""
    marks: list[str]

    @property
    def session(self) -> BrowserSession:
        """The episode's part of a browser."""
        raise NotImplementedError

    @property
    def page(self) -> Tree:
        """The page as last observed."""
        raise NotImplementedError

    @property
    def tab(self) -> Tab:
        """The tab the agent looks at."""
        return self.session.tab

    async def _click(self, id: str, count: int, did: str) -> str:
        note = ""
        try:
            at = await self._ask("point", id)
            x, y = at["x"], at["y"]
            if at["isFile"]:
                note = " Its file chooser stays empty; the tool upload, where it is offered, gives it a task's files."
        except ToolError as error:
            if error.error_type != "covered" or not self.clicks_through_covers:
                raise
            for _ in range(count):
                await self._ask("press", id)
        else:
            await self.tab.patiently(self.tab.page.mouse.click(x, y, click_count=count))
        return f"{did} [{id}].{note}"

    async def _fill(self, id: str, text: str) -> str:
        ready = await self._ask("focusText", id, True, text)
        value = ready["value"]
        if not ready["isTyped"]:
            await self._ask("setValue", id, value)
        elif value:
            await self.tab.patiently(self.tab.page.keyboard.insert_text(value))
        elif not ready["isEmpty"]:
            await self.tab.patiently(self.tab.page.keyboard.press("Delete"))
        kept = (await self._ask("valueOf", id)).get("value", value)
        is_kept = " ".join(kept.split()) == " ".join(value.split())
        return f"Filled [{id}]." if is_kept else f"Filled [{id}]; it holds {kept[:_SHOWN]!r} now."

    async def _drag(self, x: float, y: float, to_x: float, to_y: float) -> None:
        tab, mouse = self.tab, self.tab.page.mouse
        await tab.patiently(mouse.move(x, y))
        await tab.patiently(mouse.down())
        await tab.patiently(mouse.move(to_x, to_y, steps=4))  # drag listeners expect several moves of the mouse
        await tab.patiently(mouse.up())

    async def _point(self, id: str, scrolls: bool = True) -> tuple[float, float]:
        at = await self._ask("point" if scrolls else "pointHere", id)
        return at["x"], at["y"]

    async def _ask(self, name: str, id: str, *arguments: object) -> dict[str, Any]:
        """Call a function of ``hands.js`` on an element.

        Raises:
            ToolError: there is no such element, or it is of another kind.
        """
        known = self._meant(id)
        answer: dict[str, Any] = await self.tab.on_element(name, known, self.sees_all_elements, *arguments)
        if "problem" in answer:
            raise _problem(id, answer)
        return answer

    def _meant(self, id: str) -> str:
        """Return the page's id of an element given by its id, with or without brackets, or by a mark's number."""
        id = id.strip().removeprefix("[").removesuffix("]")
        if id.isdecimal() and len(id) < 6 and 0 < int(id) <= len(self.marks):
            return self.marks[int(id) - 1]
        return id


def _problem(id: str, answer: dict[str, Any]) -> ToolError:
    """Return an error that says why an element cannot be acted on, and what to do instead."""
    match answer["problem"]:
        case "unknown":
            ids = answer["ids"]
            near = difflib.get_close_matches(id, ids, n=1, cutoff=0.5)
            hint = f" Did you mean [{near[0]}]?" if near else ""
            more = f" and {len(ids) - _MOST_SHOWN} more" if len(ids) > _MOST_SHOWN else ""
            return ToolError(
                f"no element [{id[:100]}].{hint} Ids: {', '.join(ids[:_MOST_SHOWN]) or 'none'}{more}", "unknown_id"
            )
        case "covered":
            return ToolError(f"[{id}] is covered by {answer['cover']!r}; deal with that first", "covered")
        case "no_option":
            many = "any of" if answer["isMultiple"] else "one of"
            return ToolError(f"[{id}] takes {many}: {' | '.join(answer['options'])}", "invalid_arguments")
        case "no_value":
            kind = {"range": "number"}.get(answer["type"], answer["type"])
            return ToolError(
                f"[{id}] does not take that, and is unchanged: it is a field for a {kind}{answer['range']}",
                "invalid_arguments",
            )
    said = {
        "disabled": "is disabled",
        "not_visible": "has no visible part to point at",
        "no_text": "is not a text box",
        "readonly": "is read-only",
        "no_select": "is no combobox or list with options; click it instead",
        "no_files": "is no field for files",
        "one_file": "takes one file",
        "no_check": "is no checkbox, radio button or switch",
    }
    return ToolError(f"[{id}] {said[answer['problem']]}", "impossible_action")


# ---------------------------------------------------- tools around a page: scrolling, history, addresses, time and tabs

Direction = Literal["up", "down", "left", "right"]
Address = Annotated[str, Field(max_length=2000)]


class PageActions(Hands):
    """The tools of the sets ``pages`` and ``tabs``."""

    @tool
    async def scroll(self, direction: Direction, id: Annotated[str, Field(max_length=200)] = "") -> str:
        """Scroll the page by most of a screen, or an element that scrolls.

        Args:
            direction: where to.
            id: id of an element; without it the page is scrolled.
        """
        width, height = self.session.kind.viewport
        dx = {"left": -0.8, "right": 0.8}.get(direction, 0.0) * width
        dy = {"up": -0.8, "down": 0.8}.get(direction, 0.0) * height
        moved = (await self._ask("scroll", id, dx, dy))["moved"]
        await self.tab.call("frames", 2)  # what listens to scrolling is told at a frame
        return f"Scrolled {direction}." if moved else f"It cannot be scrolled {direction} any further."

    @tool
    async def go_back(self) -> str:
        """Go back to the page before this one."""
        if not await self.tab.go_back():
            raise ToolError("there is no page before this one", "impossible_action")
        return "Went back."

    @tool
    async def goto(self, url: Address) -> str:
        """Open a page of this task's sites.

        Args:
            url: address, or a path on the present site, such as /help.
        """
        await self._goto(self._allowed(url))
        return f"Opened {url}."

    @tool
    async def wait(self, seconds: Annotated[float, Field(gt=0, le=60)] = 1.0) -> str:
        """Let time pass on the page.

        Args:
            seconds: how much.
        """
        self.wait_ms += 1000 * seconds
        return f"{seconds:g} s passed."

    @tool
    async def new_tab(self, url: Address = "") -> str:
        """Open a tab.

        Args:
            url: a page of this task's sites to open in it.
        """
        limit = self.session.browser.limits.num_tabs
        if len(self.session.tabs) >= limit:
            raise ToolError(f"no more than {limit} tabs may be open; close one", "impossible_action")
        target = self._allowed(url) if url else ""
        await self.session.new_tab()
        if target:
            await self._goto(target)
        return "Opened a tab."

    @tool
    async def switch_tab(self, number: Annotated[int, Field(ge=1)]) -> str:
        """Look at another tab.

        Args:
            number: of the tab, from 1.
        """
        self.session.current = self._tab_number(number)
        await self.tab.page.bring_to_front()
        return f"Tab {number}."

    @tool
    async def close_tab(self, number: Annotated[int, Field(ge=1)]) -> str:
        """Close a tab.

        Args:
            number: of the tab, from 1.
        """
        if len(self.session.tabs) == 1:
            raise ToolError("the only tab cannot be closed", "impossible_action")
        await self.session.close_tab(self._tab_number(number))
        return f"Closed tab {number}."

    # ---------------------------------------------------------------------------------------------------- private

    def _allowed(self, url: str) -> str:
        """Return a URL of this task's sites, completing a path."""
        network, given = self.session.network, url.strip()
        if not network.hosts:
            raise ToolError(f"{url[:200]!r} is not part of this task, which has no sites", "not_allowed")
        if network.knows(given.partition("/")[0].lower()):  # a host without ``http://``, as people write it
            given = f"http://{given}"
        here = self.tab.page.url
        is_home = network.knows(urlsplit(here).netloc.removesuffix(":80"))
        try:
            target = urljoin(here if is_home else f"http://{network.hosts[0]}/", given)
            parts = urlsplit(target)
            is_known = parts.scheme == "http" and network.knows(parts.netloc.lower().removesuffix(":80"))
        except ValueError:
            is_known = False
        if not is_known:
            pages = ", ".join(f"http://{name}/" for name in network.hosts)
            raise ToolError(f"{url[:200]!r} is not part of this task; its sites are {pages}", "not_allowed")
        return target

    async def _goto(self, url: str) -> None:
        from playwright.async_api import Error

        try:
            await self.tab.goto(url, self.session.browser.limits.load_s)
        except TimeoutError:
            self.session.note("The page is still loading.")
        except Error as error:
            if not self.session.browser.is_alive:
                raise
            if "ERR_ABORTED" not in str(error):  # a download, or 204: the page stays
                raise ToolError(f"{url} did not open: {str(error).splitlines()[0]}", "impossible_action") from None

    def _tab_number(self, number: int) -> int:
        if number > len(self.session.tabs):
            raise ToolError(f"no tab {number}; there are {len(self.session.tabs)}", "unknown_id")
        return number - 1
