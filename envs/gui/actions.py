"""What an agent can do in a browser: tools with JSON arguments, never a program text that is run.

Elements are named by the ids of the last observation. A call that cannot be done is a
:class:`~agentgym.errors.ToolError` that says what exists.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal
from urllib.parse import urljoin, urlsplit

from pydantic import Field

from agentgym.envs.gui.session import Session
from agentgym.envs.gui.tab import Tab
from agentgym.envs.gui.tree import Tree
from agentgym.errors import ToolError
from agentgym.tool import tool
from agentgym.types import Call, ToolCall

_LONGEST_TEXT = 5000
_MOST_SHOWN = 40
_POINT = 8  # pixels around a point that are marked
Id = Annotated[str, Field(max_length=200)]
Text = Annotated[str, Field(max_length=_LONGEST_TEXT)]
Pixels = Annotated[int, Field(ge=0, le=10_000)]
Direction = Literal["up", "down", "left", "right"]

ACTION_SETS = {
    "elements": ("click", "double_click", "hover", "fill", "type", "press", "select", "check", "uncheck", "drag"),
    "pages": ("scroll", "go_back", "goto", "wait"),
    "tabs": ("new_tab", "switch_tab", "close_tab"),
    "pixels": ("click_at", "drag_at"),
    "answer": ("done",),
}
"""Names of tools by what they are for; an environment offers some of the sets."""


class BrowserActions:
    """The tools, to be mixed into an environment that has a session. They run in the driver's loop."""

    clicks_through_covers: bool = False
    """Whether a click reaches an element that others cover wholly, as no person's would."""
    sees_all_elements: bool = False
    """Whether every element without children gets an id, for pages whose scripts listen where nothing shows it."""
    wait_ms: float = 0.0
    """Milliseconds of the page's time that this turn's waiting adds."""
    answer: str | None = None
    marks: list[str]

    @property
    def session(self) -> Session:
        """The episode's part of a browser."""
        raise NotImplementedError

    @property
    def page(self) -> Tree:
        """The page as it was last looked at."""
        raise NotImplementedError

    @property
    def tab(self) -> Tab:
        """The tab the agent looks at."""
        return self.session.tab

    # --------------------------------------------------------------------------------------------------- elements

    @tool
    async def click(self, id: Id) -> str:
        """Click an element.

        Args:
            id: its id, as in the square brackets.
        """
        return await self._click(id, 1, "Clicked")

    @tool
    async def double_click(self, id: Id) -> str:
        """Click an element twice.

        Args:
            id: its id, as in the square brackets.
        """
        return await self._click(id, 2, "Double-clicked")

    @tool
    async def hover(self, id: Id) -> str:
        """Move the mouse over an element and leave it there.

        Args:
            id: its id, as in the square brackets.
        """
        x, y = await self._point(id)
        await self.tab.patiently(self.tab.page.mouse.move(x, y))
        return f"The mouse is over [{id}]."

    @tool
    async def fill(self, id: Id, text: Text) -> str:
        """Replace the text of a text box.

        Args:
            id: its id, as in the square brackets.
            text: the new text; dates are YYYY-MM-DD, times HH:MM, colours #RRGGBB.
        """
        ready = await self._ask("focusText", id, True)
        if not ready["isTyped"]:
            await self._ask("setValue", id, text)
        elif text:
            await self.tab.patiently(self.tab.page.keyboard.insert_text(text))
        elif not ready["isEmpty"]:
            await self.tab.patiently(self.tab.page.keyboard.press("Delete"))
        return f"Filled [{id}]."

    @tool
    async def type(self, id: Id, text: Text) -> str:
        """Type at the end of a text box, key by key.

        Args:
            id: its id, as in the square brackets.
            text: what to type.
        """
        await self._ask("focusText", id, False)
        await self.tab.patiently(self.tab.page.keyboard.type(text))
        return f"Typed into [{id}]."

    @tool
    async def press(self, key: Annotated[str, Field(max_length=60)]) -> str:
        """Press a key, or several at once, where the focus is.

        Args:
            key: such as Enter, Tab, Escape, ArrowDown, a, or Control+a.
        """
        from playwright.async_api import Error

        try:
            await self.tab.patiently(self.tab.page.keyboard.press(key))
        except Error as error:
            if "Unknown key" not in str(error):
                raise
            raise ToolError(
                f"unknown key {key!r}; keys are Enter, Tab, Escape, Backspace, Delete, Space, ArrowUp, ArrowDown, "
                "ArrowLeft, ArrowRight, Home, End, PageUp, PageDown, F1, single characters, and combinations such as "
                "Control+a",
                "invalid_arguments",
            ) from None
        return f"Pressed {key}."

    @tool
    async def select(self, id: Id, options: Annotated[list[Text], Field(min_length=1, max_length=100)]) -> str:
        """Choose an option of a combobox, or all the options that are to be chosen of a list.

        Args:
            id: id of the element.
            options: the options' texts.
        """
        await self._ask("choose", id, options)
        return f"Selected {', '.join(options)} in [{id}]."

    @tool
    async def check(self, id: Id) -> str:
        """Switch a checkbox, radio button or switch on; nothing happens if it is on.

        Args:
            id: its id, as in the square brackets.
        """
        return await self._check(id, True)

    @tool
    async def uncheck(self, id: Id) -> str:
        """Switch a checkbox or switch off; nothing happens if it is off.

        Args:
            id: its id, as in the square brackets.
        """
        return await self._check(id, False)

    @tool
    async def drag(self, source: Id, target: Id) -> str:
        """Drag an element onto another with the mouse.

        Args:
            source: id of the element to drag.
            target: id of the element to drop it on.
        """
        await self._point(target)  # both on the screen, where it is large enough
        x, y = await self._point(source)
        to_x, to_y = await self._point(target, scrolls=False)
        await self._drag(x, y, to_x, to_y)
        return f"Dragged [{source}] to [{target}]."

    # ------------------------------------------------------------------------------------------------------ pages

    @tool
    async def scroll(self, direction: Direction, id: Id = "") -> str:
        """Scroll the page by most of a screen, or an element that scrolls.

        Args:
            direction: where to.
            id: id of an element; without it the page is scrolled.
        """
        width, height = self.session.kind.viewport
        dx = {"left": -0.8, "right": 0.8}.get(direction, 0.0) * width
        dy = {"up": -0.8, "down": 0.8}.get(direction, 0.0) * height
        moved = (await self._ask("scroll", id, dx, dy))["moved"]
        return f"Scrolled {direction}." if moved else f"It cannot be scrolled {direction} any further."

    @tool
    async def go_back(self) -> str:
        """Go back to the page before this one."""
        if not await self.tab.go_back():
            raise ToolError("there is no page before this one", "impossible_action")
        return "Went back."

    @tool
    async def goto(self, url: Annotated[str, Field(max_length=2000)]) -> str:
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

    # ------------------------------------------------------------------------------------------------------- tabs

    @tool
    async def new_tab(self, url: Annotated[str, Field(max_length=2000)] = "") -> str:
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

    # ----------------------------------------------------------------------------------------------------- pixels

    @tool
    async def click_at(self, x: Pixels, y: Pixels) -> str:
        """Click at a point of the screenshot.

        Args:
            x: pixels from the left.
            y: pixels from the top.
        """
        await self.tab.patiently(self.tab.page.mouse.click(*self._pixel(x, y)))
        return f"Clicked at ({x}, {y})."

    @tool
    async def drag_at(self, x: Pixels, y: Pixels, to_x: Pixels, to_y: Pixels) -> str:
        """Drag with the mouse from one point of the screenshot to another.

        Args:
            x: pixels from the left.
            y: pixels from the top.
            to_x: where to, pixels from the left.
            to_y: where to, pixels from the top.
        """
        await self._drag(*self._pixel(x, y), *self._pixel(to_x, to_y))
        return f"Dragged from ({x}, {y}) to ({to_x}, {to_y})."

    # ----------------------------------------------------------------------------------------------------- answer

    @tool
    async def done(self, answer: Annotated[str, Field(max_length=_LONGEST_TEXT)] = "") -> str:
        """Say that the task is done.

        Args:
            answer: what the task asks for, if it asks for something.
        """
        self.answer = answer
        return "Done."

    # ------------------------------------------------------------------------------------------------- for who looks on

    def acted_box(self, call: Call) -> tuple[int, int, int, int] | None:
        """Where on the screen, as last looked at, a call acts; None if nowhere that is seen."""
        if not isinstance(call, ToolCall):
            return None
        given = call.arguments
        if isinstance(x := given.get("x"), int) and isinstance(y := given.get("y"), int):
            return (x - _POINT, y - _POINT, 2 * _POINT, 2 * _POINT)
        id = given.get("id", given.get("source"))
        node = self.page.by_id.get(self._meant(id)) if isinstance(id, str) else None
        return node.box if node is not None and node.is_seen else None

    # ---------------------------------------------------------------------------------------------------- private

    async def _click(self, id: str, count: int, did: str) -> str:
        try:
            x, y = await self._point(id)
        except ToolError as error:
            if error.error_type != "covered" or not self.clicks_through_covers:
                raise
            for _ in range(count):
                await self._ask("press", id)
        else:
            await self.tab.patiently(self.tab.page.mouse.click(x, y, click_count=count))
        return f"{did} [{id}]."

    async def _check(self, id: str, wanted: bool) -> str:
        before = await self._ask("checked", id)
        if not wanted and before["role"] == "radio":
            raise ToolError("a radio button is switched off by choosing another one", "impossible_action")
        if before["checked"] != wanted:
            await self._click(id, 1, "")
        return f"[{id}] is {'on' if wanted else 'off'}."

    async def _drag(self, x: float, y: float, to_x: float, to_y: float) -> None:
        tab, mouse = self.tab, self.tab.page.mouse
        await tab.patiently(mouse.move(x, y))
        await tab.patiently(mouse.down())
        await tab.patiently(mouse.move(to_x, to_y, steps=4))  # what listens to dragging wants to see some way
        await tab.patiently(mouse.up())

    async def _point(self, id: str, scrolls: bool = True) -> tuple[float, float]:
        at = await self._ask("point" if scrolls else "pointHere", id)
        return at["x"], at["y"]

    async def _ask(self, name: str, id: str, *arguments: object) -> dict[str, Any]:
        """A function of ``hands.js`` that looks for an element first.

        Raises:
            ToolError: there is no such element, or it is of another kind.
        """
        known = self._meant(id)
        answer: dict[str, Any] = await self.tab.call(name, known, self.sees_all_elements, *arguments) or {}
        if "problem" in answer:
            raise _problem(id, answer)
        return answer

    def _meant(self, id: str) -> str:
        """An id as the page knows it: in brackets or not, or a mark's number."""
        id = id.strip().removeprefix("[").removesuffix("]")
        if id.isdecimal() and len(id) < 6 and 0 < int(id) <= len(self.marks):
            return self.marks[int(id) - 1]
        return id

    def _allowed(self, url: str) -> str:
        """A URL of this task's sites, completed from a path."""
        network, given = self.session.network, url.strip()
        if network.knows(given.partition("/")[0].lower()):  # as people write it
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

    def _pixel(self, x: int, y: int) -> tuple[int, int]:
        width, height = self.session.kind.viewport
        if x >= width or y >= height:
            raise ToolError(f"({x}, {y}) is outside the screen of {width} x {height} pixels", "invalid_arguments")
        return x, y


def _problem(id: str, answer: dict[str, Any]) -> ToolError:
    """Why an element cannot be acted on, and what can be done instead."""
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
            return ToolError(f"[{id}] does not take that: it is a field for a {answer['type']}", "invalid_arguments")
    said = {
        "disabled": "is disabled",
        "not_visible": "has no visible part to point at",
        "no_text": "is not a text box",
        "readonly": "is read-only",
        "no_select": "is no combobox or list with options; click it instead",
        "no_check": "is no checkbox, radio button or switch",
    }
    return ToolError(f"[{id}] {said[answer['problem']]}", "impossible_action")
