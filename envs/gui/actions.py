"""The agent's actions in a browser: tools with JSON arguments; no code from the agent is ever run.

Calls name elements by the ids of the last observation. A call that cannot be carried out raises
:class:`~agentgym.errors.ToolError`, whose text lists what exists.
"""

from __future__ import annotations

import mimetypes
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from agentgym.envs.gui.page_actions import PageActions
from agentgym.envs.gui.screen_actions import MARKS, POINTING, SCREEN, ScreenActions, pointing_tools
from agentgym.errors import ConfigError, ToolError, require_known
from agentgym.tool import Tool, tool
from agentgym.tools.look import LOOKING
from agentgym.tools.pictures import Coordinate
from agentgym.types import Call, ToolCall

_LONGEST_TEXT = 5000
Id = Annotated[str, Field(max_length=200)]
Text = Annotated[str, Field(max_length=_LONGEST_TEXT)]

ACTION_SETS = {
    "minimal": ("click", "fill"),
    "elements": ("click", "double_click", "hover", "fill", "type", "press", "select", "check", "uncheck", "drag"),
    "motion": ("scroll", "wait"),
    "pages": ("scroll", "go_back", "goto", "wait"),
    "tabs": ("new_tab", "switch_tab", "close_tab"),
    "pixels": ("click_at", "drag_at"),
    "marks": MARKS,
    "look": LOOKING,
    "files": ("upload",),
    "answer": ("done",),
}
"""Sets of tools, by the name of the set; an environment offers some of them. The set ``screen`` is
:data:`~agentgym.envs.gui.screen_actions.POINTING`, whose tools have the names of others."""


def offered_tools(tools: Mapping[str, Tool], actions: Sequence[str], parts: Sequence[str]) -> Mapping[str, Tool]:
    """Return the tools of some sets, and an environment's own, which are in no set.

    Args:
        tools: all tools of an environment's class.
        actions: names of sets.
        parts: the parts of an observation.

    Raises:
        ConfigError: a set needs pictures or marks that no observation has, or two sets have tools of the same name.
    """
    for name in actions:
        require_known("set of actions", name, (*ACTION_SETS, SCREEN))
    offered = {tool for name in actions if name != SCREEN for tool in ACTION_SETS[name]}
    browsing = {tool for names in ACTION_SETS.values() for tool in names} | set(POINTING.values())
    own = {name: tool for name, tool in tools.items() if name in offered or name not in browsing}
    if "look" in actions and not {"screenshot", "marks"} & set(parts):
        raise ConfigError("actions=look needs screenshot or marks in observe, which its tools look at again")
    if "marks" in actions and "marks" not in parts:
        raise ConfigError("actions=marks needs marks in observe, since its tools take their numbers")
    if SCREEN not in actions:
        return own
    if not {"screenshot", "marks"} & set(parts):
        raise ConfigError("actions=screen needs screenshot or marks in observe, on which its tools point")
    if both := sorted(offered & set(POINTING)):
        raise ConfigError(f"actions=screen has tools of the same names as other sets of actions: {', '.join(both)}")
    return own | pointing_tools(tools)


class BrowserActions(ScreenActions, PageActions):
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
        return await self._fill(id, text)

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
    async def click_at(self, x: Coordinate, y: Coordinate) -> str:
        """Click at a point of the screenshot.

        Args:
            x: from the left.
            y: from the top.
        """
        return await self.click_point(x, y)

    @tool
    async def drag_at(self, x: Coordinate, y: Coordinate, to_x: Coordinate, to_y: Coordinate) -> str:
        """Drag with the mouse from one point of the screenshot to another.

        Args:
            x: from the left.
            y: from the top.
            to_x: where to, from the left.
            to_y: where to, from the top.
        """
        return await self.drag_points(x, y, to_x, to_y)

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
        """Return the box of the picture (left, top, width, height in pixels) that a call acts on, if any."""
        if not isinstance(call, ToolCall) or call.name in LOOKING:
            return None
        given = call.arguments
        if "x" in given and "y" in given:
            return self.screen.spot(given["x"], given["y"])
        id = given.get("id", given.get("source"))
        mark = given.get("mark")
        if isinstance(mark, int) and 0 < mark <= len(self.marks):
            id = self.marks[mark - 1]
        node = self.page.by_id.get(self._meant(id)) if isinstance(id, str) else None
        return self.on_picture(node.box) if node is not None and node.is_seen else None

    # ---------------------------------------------------------------------------------------------------- private

    async def _check(self, id: str, wanted: bool) -> str:
        before = await self._ask("checked", id)
        if not wanted and before["role"] == "radio":
            raise ToolError("a radio button is switched off by choosing another one", "impossible_action")
        if before["checked"] != wanted:
            await self._click(id, 1, "")
        return f"[{id}] is {'on' if wanted else 'off'}."
