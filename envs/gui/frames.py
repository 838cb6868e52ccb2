"""Frames of other origins within a tab: their elements become a part of the tab's tree, and their points are the tab's.

JavaScript of one origin cannot look into a document of another. Each of these documents therefore has a walk in its own
isolated world, which is told where its frame is.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agentgym.errors import EnvTimeoutError

if TYPE_CHECKING:
    from agentgym.envs.gui.tab import Tab

UNREAD = "[the contents of this frame cannot be read]"
_POINTS = ("point", "pointHere")
_PLACE = ("x", "y", "left", "top", "right", "bottom")


class FrameGoneError(Exception):
    """A frame is not in the tab any more."""


class Frames:
    """The frames of other origins of a tab, as they were last seen."""

    def __init__(self, tab: Tab) -> None:
        self._tab = tab
        self._frame_of: dict[str, str] = {}  # id of an element -> its frame, of those in other frames than the main one
        self._around: dict[str, str] = {}  # frame -> the frame whose walk met it; an empty text is the main frame
        self._ids: list[str] = []

    async def fill_in(self, seen: Mapping[str, Any], everything: bool) -> dict[str, Any]:
        """Return what ``look`` saw with the nodes of frames of other origins in their places."""
        self._frame_of, self._around = {}, {}
        self._ids = [node["id"] for node in seen["nodes"] if "id" in node]
        return {**seen, "nodes": await self._filled(seen["nodes"], "", everything)}

    async def sources(self) -> list[tuple[str, str]]:
        """Return address and markup of the page and of the documents in its frames."""
        found: list[tuple[str, str]] = list(await self._tab.call_in("", "source"))
        for frame in self._around:
            with suppress(FrameGoneError):
                found += await self._tab.call_in(frame, "source") if self._tab.has_document(frame) else []
        return found

    async def on_element(self, name: str, id: str, arguments: tuple[object, ...]) -> dict[str, Any]:
        """Call a function of ``hands.js`` on an element, in whichever frame it is."""
        frame = self._frame_of.get(id, "")
        if frame and not self._tab.has_document(frame):
            frame = ""  # has gone with its frame; the main document says that there is no such element
        try:
            answer: dict[str, Any] = await self._tab.call_in(frame, name, id, *arguments) or {}
            if name in _POINTS:
                while frame and "problem" not in answer:
                    around, point = self._around[frame], (answer["x"], answer["y"])
                    answer |= await self._tab.call_in(around, "through", frame, *point, name == "point")
                    frame = around
        except FrameGoneError:
            answer = {"problem": "unknown"}
        if answer.get("problem") == "unknown":
            answer["ids"] = self._ids
        return answer

    async def _filled(self, nodes: list[dict[str, Any]], around: str, everything: bool) -> list[dict[str, Any]]:
        filled: list[dict[str, Any]] = []
        for node in nodes:
            filled += [node] if node["role"] != "frame" else await self._inside(node, around, everything)
        return filled

    async def _inside(self, node: dict[str, Any], around: str, everything: bool) -> list[dict[str, Any]]:
        """Return the nodes of a frame's document, or a line that says that it cannot be read."""
        where = node["frame"]
        frame: str = where["key"] or await self._tab.frame_of(around, where["number"])
        if self._tab.has_document(frame):
            if not where["key"]:
                await self._tab.call_in(around, "nameStranger", where["number"], frame)
            self._around[frame] = around
            place = {name: where[name] for name in _PLACE} | {
                "name": node["name"],
                "depth": node["depth"],
                "taken": self._ids,
            }
            try:
                nodes: list[dict[str, Any]] = await self._tab.call_in(frame, "walk", everything, place)
            except FrameGoneError:
                return []
            except EnvTimeoutError:  # it navigates without end, which is no fault of the page around it
                return [{**node, "role": "text", "name": UNREAD}]
            ids = [one["id"] for one in nodes if "id" in one]
            self._ids = [*self._ids, *ids]
            self._frame_of |= dict.fromkeys(ids, frame)
            return await self._filled(nodes, frame, everything)
        return [{**node, "role": "text", "name": UNREAD}]
