"""Actions of an agent that sees: points of the picture it was shown, and numbers of marks drawn on it.

The environment scales a page's screenshot to a size that no processor changes (:mod:`agentgym.tools.pictures`), and
scales the agent's coordinates back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from agentgym.envs.gui.page_actions import Direction, Hands
from agentgym.envs.gui.tree import Node
from agentgym.errors import ToolError, UsageError
from agentgym.tool import Tool, tool
from agentgym.tools.pictures import Box, Coordinate, Screen, Size
from agentgym.types import ToolCall

_LONGEST_TEXT = 5000
Text = Annotated[str, Field(max_length=_LONGEST_TEXT)]

SCREEN = "screen"
POINTING = {
    "click": "click_point",
    "double_click": "double_click_point",
    "hover": "hover_point",
    "drag": "drag_points",
    "scroll": "scroll_point",
    "type": "type_text",
}
"""Tools of the set ``screen``, by the name that the agent sees, and the methods that run them."""
WITH_THEM = ("press", "wait", "done")
"""Further tools of the set ``screen``, which need no element."""
MARKS = ("click_mark", "fill_mark")
"""Tools of the set ``marks``."""


def pointing_tools(tools: Mapping[str, Tool]) -> dict[str, Tool]:
    """Return the tools of the set ``screen`` under the names that the agent sees."""
    named = {name: replace(tools[method], name=name) for name, method in POINTING.items()}
    return named | {name: tools[name] for name in WITH_THEM}


class ScreenActions(Hands):
    """The tools of the sets ``screen`` and ``marks``. The set renames those that end in point, points or text."""

    screen: Screen
    """The picture that the agent is shown, and its scale."""
    page_scale: float = 1.0
    """Pixels of the picture for a pixel of the page."""
    viewport: Size

    @tool
    async def click_point(self, x: Coordinate, y: Coordinate) -> str:
        """Click a point of the picture.

        Args:
            x: from the left.
            y: from the top.
        """
        await self.tab.patiently(self.tab.page.mouse.click(*self.on_page(x, y)))
        return f"Clicked at ({x:g}, {y:g})."

    @tool
    async def double_click_point(self, x: Coordinate, y: Coordinate) -> str:
        """Click a point of the picture twice.

        Args:
            x: from the left.
            y: from the top.
        """
        await self.tab.patiently(self.tab.page.mouse.click(*self.on_page(x, y), click_count=2))
        return f"Double-clicked at ({x:g}, {y:g})."

    @tool
    async def hover_point(self, x: Coordinate, y: Coordinate) -> str:
        """Move the mouse to a point of the picture and leave it there.

        Args:
            x: from the left.
            y: from the top.
        """
        await self.tab.patiently(self.tab.page.mouse.move(*self.on_page(x, y)))
        return f"The mouse is at ({x:g}, {y:g})."

    @tool
    async def drag_points(self, x: Coordinate, y: Coordinate, to_x: Coordinate, to_y: Coordinate) -> str:
        """Drag with the mouse from one point of the picture to another.

        Args:
            x: from the left.
            y: from the top.
            to_x: where to, from the left.
            to_y: where to, from the top.
        """
        await self._drag(*self.on_page(x, y), *self.on_page(to_x, to_y))
        return f"Dragged from ({x:g}, {y:g}) to ({to_x:g}, {to_y:g})."

    @tool
    async def scroll_point(self, direction: Direction, x: Coordinate | None = None, y: Coordinate | None = None) -> str:
        """Scroll the page by most of a screen, or what scrolls at a point of the picture.

        Args:
            direction: where to.
            x: of the point, from the left; without it the page is scrolled.
            y: of the point, from the top.
        """
        if (x is None) != (y is None):
            raise ToolError("give both x and y, or neither", "invalid_arguments")
        around = [] if x is None or y is None else self._around(*self.on_page(x, y))
        width, height = self.viewport
        dx = {"left": -0.8, "right": 0.8}.get(direction, 0.0) * width
        dy = {"up": -0.8, "down": 0.8}.get(direction, 0.0) * height
        moved = False
        for id in [*around, ""]:  # the innermost that moves, and the page last
            moved = moved or bool((await self._ask("scroll", id, dx, dy))["moved"])
        await self.tab.call("frames", 2)  # what listens to scrolling is told at a frame
        return f"Scrolled {direction}." if moved else f"It cannot be scrolled {direction} any further."

    @tool
    async def type_text(self, text: Text) -> str:
        """Type where the focus is, key by key; click a text box first.

        Args:
            text: what to type.
        """
        await self.tab.patiently(self.tab.page.keyboard.type(text))
        return "Typed."

    @tool
    async def click_mark(self, mark: int) -> str:
        """Click the element with a mark.

        Args:
            mark: its number on the picture.
        """
        return await self._click(self._marked(mark), 1, "Clicked")

    @tool
    async def fill_mark(self, mark: int, text: Text) -> str:
        """Replace the text of the text box with a mark.

        Args:
            mark: its number on the picture.
            text: the new text; dates are YYYY-MM-DD, times HH:MM, colours #RRGGBB.
        """
        return await self._fill(self._marked(mark), text)

    # ----------------------------------------------------------------------------------------- pictures and pages

    def on_page(self, x: float, y: float) -> tuple[float, float]:
        """Return the page's pixels at a point of the picture.

        Raises:
            ToolError: the point is outside the picture, or beside the page.
        """
        across, down = (self._unscaled(at) for at in self.screen.point(x, y))
        width, height = self.viewport
        if across >= width or down >= height:
            raise ToolError(f"({x:g}, {y:g}) is on the grey margin, outside the page", "invalid_arguments")
        return across, down

    def on_picture(self, box: Box) -> Box:
        """Return a box of the page as one of the picture, each side at least a pixel."""
        left, top, width, height = (round(side * self.page_scale) for side in box)
        return left, top, max(1, width), max(1, height)

    def pointed(self, call: ToolCall) -> list[ToolCall]:
        """Return the calls of the set ``screen`` that do what a call of the set ``elements`` does.

        Raises:
            UsageError: no points do that, as with a choice of a native list.
        """
        given = dict(call.arguments)
        if call.name in WITH_THEM:
            return [call]
        if call.name in ("click", "check", "uncheck"):
            return [self._at("click", given["id"])]
        if call.name in ("double_click", "hover"):
            return [self._at(call.name, given["id"])]
        if call.name in ("click_at", "drag_at"):
            return [replace(call, name=call.name.removesuffix("_at"))]
        if call.name == "drag":
            to = self._at("click", given["target"]).arguments
            start = self._at("drag", given["source"])
            return [replace(start, arguments={**start.arguments, "to_x": to["x"], "to_y": to["y"]})]
        if call.name == "scroll":
            direction = {"direction": given["direction"]}
            return [self._at("scroll", given["id"], direction)] if given.get("id") else [replace(call, id="0")]
        if call.name in ("fill", "type"):
            return self._typed(call.name, given["id"], str(given["text"]))
        raise UsageError(f"no points on a picture do what the call {call.name} does; the oracle needs actions=elements")

    # ---------------------------------------------------------------------------------------------------- private

    def _typed(self, name: str, id: str, text: str) -> list[ToolCall]:
        calls = [self._at("click", id)]
        node = self.page.by_id[self._meant(id)]
        if name == "fill" and node.states.get("value"):
            calls += [ToolCall("press", {"key": "Control+a"}, "1"), ToolCall("press", {"key": "Delete"}, "2")]
        elif name == "type":
            calls.append(ToolCall("press", {"key": "End"}, "1"))
        return [*calls, *([ToolCall("type", {"text": text}, "3")] if text else [])]

    def _at(self, name: str, id: str, first: dict[str, Any] | None = None) -> ToolCall:
        """Return a call at the middle of an element's visible part; a call that scrolls to it if there is none."""
        node = self.page.by_id[self._meant(id)]
        (left, top, width, height), (wide, high) = node.box, self.viewport
        right, bottom = min(left + width, wide), min(top + height, high)
        left, top = max(left, 0), max(top, 0)
        if not node.is_seen or right <= left or bottom <= top:
            return ToolCall("scroll", {"direction": "down" if node.box[1] >= high else "up"}, "0")
        x, y = (int((one + other) / 2 * self.page_scale) for one, other in ((left, right), (top, bottom)))
        at = self.screen.said(x, y)
        return ToolCall(name, {**(first or {}), "x": at[0], "y": at[1]}, "0")

    def _around(self, x: float, y: float) -> list[str]:
        """Return the ids of elements around a point, the smallest first."""

        def holds(node: Node) -> bool:
            left, top, width, height = node.box
            return bool(node.id) and node.is_seen and left <= x < left + width and top <= y < top + height

        found = [node for node in self.page.nodes if holds(node)]
        return [node.id for node in sorted(found, key=lambda node: node.box[2] * node.box[3])]

    def _marked(self, mark: int) -> str:
        if not 0 < mark <= len(self.marks):
            there = f"marks run from 1 to {len(self.marks)}" if self.marks else "there are no marks"
            raise ToolError(f"no mark {mark}; {there}", "unknown_id")
        return self.marks[mark - 1]

    def _unscaled(self, at: int) -> float:
        return (at + 0.5) / self.page_scale - 0.5 if self.page_scale != 1 else at
