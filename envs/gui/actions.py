"""The agent's actions in a browser: tools with JSON arguments; no code from the agent is ever run.

Calls name elements by the ids of the last observation. A call that cannot be carried out raises
:class:`~agentgym.errors.ToolError`, whose text lists what exists.
"""

from __future__ import annotations

import mimetypes
from base64 import b64encode
from typing import Annotated

from pydantic import Field

from agentgym.envs.gui.page_actions import PageActions
from agentgym.errors import ToolError
from agentgym.tool import tool
from agentgym.types import Call, ToolCall

_LONGEST_TEXT = 5000
_SHOWN = 200
_POINT = 8  # pixels around a point that are marked
Id = Annotated[str, Field(max_length=200)]
Text = Annotated[str, Field(max_length=_LONGEST_TEXT)]
Pixels = Annotated[int, Field(ge=0, le=10_000)]

ACTION_SETS = {
    "minimal": ("click", "fill"),
    "elements": ("click", "double_click", "hover", "fill", "type", "press", "select", "check", "uncheck", "drag"),
    "motion": ("scroll", "wait"),
    "pages": ("scroll", "go_back", "goto", "wait"),
    "tabs": ("new_tab", "switch_tab", "close_tab"),
    "pixels": ("click_at", "drag_at"),
    "files": ("upload",),
    "answer": ("done",),
}
"""Sets of tools, by the name of the set; an environment offers some of them."""


class BrowserActions(PageActions):
    """A mix-in with all tools, for an environment that has a browser session."""

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

    @tool
    async def type(self, id: Id, text: Text) -> str:
        """Type at the end of a text box, key by key.

        Args:
            id: its id, as in the square brackets.
            text: what to type.
        """
        await self._ask("focusText", id, False, text)
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
    async def upload(self, id: Id, files: Annotated[list[Text], Field(min_length=1, max_length=20)]) -> str:
        """Choose files of the task for a file field.

        Args:
            id: id of the field, or of its label.
            files: names of the files.
        """
        for name in files:
            if name not in self.task_files:
                there = ", ".join(self.task_files) or "none"
                raise ToolError(f"no file {name[:100]!r}; the task's files: {there}", "invalid_arguments")
        given = [
            {
                "name": name,
                "type": mimetypes.guess_type(name)[0] or "",
                "base64": b64encode(self.task_files[name]).decode(),
            }
            for name in files
        ]
        await self._ask("giveFiles", id, given)
        return f"Chose {', '.join(files)} for [{id}]."

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
        """Return the box (left, top, width, height in pixels) that a call acts on; None if it is not on the screen."""
        if not isinstance(call, ToolCall):
            return None
        given = call.arguments
        if isinstance(x := given.get("x"), int) and isinstance(y := given.get("y"), int):
            return (x - _POINT, y - _POINT, 2 * _POINT, 2 * _POINT)
        id = given.get("id", given.get("source"))
        node = self.page.by_id.get(self._meant(id)) if isinstance(id, str) else None
        return node.box if node is not None and node.is_seen else None

    # ---------------------------------------------------------------------------------------------------- private

    async def _check(self, id: str, wanted: bool) -> str:
        before = await self._ask("checked", id)
        if not wanted and before["role"] == "radio":
            raise ToolError("a radio button is switched off by choosing another one", "impossible_action")
        if before["checked"] != wanted:
            await self._click(id, 1, "")
        return f"[{id}] is {'on' if wanted else 'off'}."

    def _pixel(self, x: int, y: int) -> tuple[int, int]:
        width, height = self.session.kind.viewport
        if x >= width or y >= height:
            raise ToolError(f"({x}, {y}) is outside the screen of {width} x {height} pixels", "invalid_arguments")
        return x, y
