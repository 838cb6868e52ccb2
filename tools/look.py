"""Tools to look at shown pictures again: ``crop``, ``zoom`` and ``look_at``.

After VRAG-RL (Wang et al., 2025), ViGoRL (Sarch et al., 2025) and Mini-o3 (Lai et al., 2025). All are functions of the
pictures alone. What they return has sides that no processor changes (:mod:`agentgym.tools.pictures`), and can be looked
at in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from agentgym.env.env import TypedStep
from agentgym.env.tool_env import ToolEnv
from agentgym.errors import ToolError
from agentgym.tool import tool
from agentgym.tools.pictures import (
    SIDE,
    Box,
    Coordinate,
    Scale,
    Screen,
    image_part,
    opened,
    padded,
    png_bytes,
    png_from,
    png_size,
)
from agentgym.types import Call, ImagePart, Message, Observation, ToolCall, ToolResult

if TYPE_CHECKING:
    from PIL import Image

LOOKING = ("crop", "zoom", "look_at")
"""Names of the tools."""
LEAST = 8
"""Least pixels along a side of what is looked at."""
ZOOMED = 2 * SIDE
"""Pixels along the longer side of an enlarged region."""
_MOST_ENLARGED = 8.0
Number = Annotated[int, Field(ge=-1_000_000, le=1_000_000)]


class LookTools(ToolEnv):
    """A mix-in with tools that return regions of the pictures of this episode, which are numbered from 1.

    Example:
        >>> class Map(LookTools):
        ...     def start(self, task):
        ...         return "The map is empty."
        >>> env = Map()
        >>> _ = env.reset(seed=0)
        >>> env.step("crop: 1, 0, 0, 50, 50")[0][0].text
        'Error: no picture 1; no picture was shown yet'
    """

    look_scale: Scale = "pixels"
    """Scale of the coordinates."""
    shown: tuple[ImagePart, ...] = ()
    """The pictures of this episode, in the order in which the agent sees them."""

    @tool
    def crop(
        self, picture: Number, left: Coordinate, top: Coordinate, right: Coordinate, bottom: Coordinate
    ) -> list[str | ImagePart]:
        """Cut a box out of a picture, as large as it is there.

        Args:
            picture: number of the picture, from 1 in the order in which you saw them.
            left: of the box.
            top: of the box.
            right: of the box, from the left.
            bottom: of the box, from the top.
        """
        region, box = self._region(picture, left, top, right, bottom)
        return self._told(picture, box, padded(region))

    @tool
    def zoom(
        self, picture: Number, left: Coordinate, top: Coordinate, right: Coordinate, bottom: Coordinate
    ) -> list[str | ImagePart]:
        """Enlarge a box of a picture.

        Args:
            picture: number of the picture, from 1 in the order in which you saw them.
            left: of the box.
            top: of the box.
            right: of the box, from the left.
            bottom: of the box, from the top.
        """
        region, box = self._region(picture, left, top, right, bottom)
        return self._told(picture, box, _enlarged(region))

    @tool
    def look_at(self, picture: Number, x: Coordinate, y: Coordinate) -> list[str | ImagePart]:
        """Enlarge what is around a point of a picture.

        Args:
            picture: number of the picture, from 1 in the order in which you saw them.
            x: of the point, from the left.
            y: of the point, from the top.
        """
        screen = self._screen(picture)
        box = _around(screen, *screen.point(x, y))
        return self._told(picture, box, _enlarged(_cut(self._opened(picture), box)))

    def looked_box(self, call: Call) -> Box | None:
        """Return the box in pixels, left, top, width and height, that a call looks at; None if it is refused."""
        if not isinstance(call, ToolCall) or call.name not in LOOKING or call.name not in self._tools:
            return None
        try:
            given = self._tools[call.name].arguments(call)
            screen = self._screen(given.pop("picture"))
            return (
                _around(screen, *screen.point(**given)) if call.name == "look_at" else screen.box(**given, least=LEAST)
            )
        except ToolError:
            return None

    # --------------------------------------------------------------------------------------- pictures of an episode

    def _begun(self, said: str | Observation) -> tuple[Observation, dict[str, object]]:
        observation, info = super()._begun(said)
        self.__before = self.shown = pictures_of(observation)
        return observation, info

    def _enter(self, action: Any) -> Message:
        self.__before = self.shown
        return super()._enter(action)

    def _leave(self, said: str | Observation) -> TypedStep:
        step = super()._leave(said)
        self.shown = self.__before + pictures_of(step[0])
        return step

    def _run(self, call: Call) -> ToolResult:
        return self._noted(call, super()._run(call))

    async def _arun(self, call: Call) -> ToolResult:
        return self._noted(call, await super()._arun(call))

    def _noted(self, call: Call, result: ToolResult) -> ToolResult:
        """Number the pictures of a result, so that a later call of the same turn can name them."""
        box = self.looked_box(call)
        self.shown += result.images
        return result if box is None else replace(result, box=box)

    # ---------------------------------------------------------------------------------------------------- private

    def _png(self, picture: int) -> bytes:
        if not 0 < picture <= len(self.shown):
            there = f"pictures run from 1 to {len(self.shown)}" if self.shown else "no picture was shown yet"
            raise ToolError(f"no picture {picture}; {there}", "unknown_picture")
        return png_bytes(self.shown[picture - 1])

    def _screen(self, picture: int) -> Screen:
        return Screen(*png_size(self._png(picture)), self.look_scale)

    def _opened(self, picture: int) -> Image.Image:
        return opened(self._png(picture), f"{picture} of the episode")

    def _region(self, picture: int, left: float, top: float, right: float, bottom: float) -> tuple[Image.Image, Box]:
        box = self._screen(picture).box(left, top, right, bottom, least=LEAST)
        return _cut(self._opened(picture), box), box

    def _told(self, picture: int, box: Box, region: Image.Image) -> list[str | ImagePart]:
        left, top, width, height = box
        new = f"Picture {len(self.shown) + 1}, {region.width} x {region.height} pixels"
        told = f"{new}: {width} x {height} pixels of picture {picture}, from ({left}, {top})."
        return [told, image_part(png_from(region))]


def pictures_of(messages: Sequence[Message]) -> tuple[ImagePart, ...]:
    """Return the pictures of messages, in their order."""
    parts = (part for message in messages if not isinstance(message.content, str) for part in message.content)
    return tuple(part for part in parts if isinstance(part, ImagePart))


def _around(screen: Screen, x: int, y: int) -> Box:
    """Return a box of a third of the picture's sides around a point, moved into the picture at its edges."""
    width, height = (min(side, max(LEAST, side // 3)) for side in (screen.width, screen.height))
    left, top = (
        min(max(0, at - side // 2), whole - side)
        for at, side, whole in ((x, width, screen.width), (y, height, screen.height))
    )
    return left, top, width, height


def _cut(picture: Image.Image, box: Box) -> Image.Image:
    left, top, width, height = box
    return picture.crop((left, top, left + width, top + height))


def _enlarged(region: Image.Image) -> Image.Image:
    """Return a region with a longer side of :data:`ZOOMED` pixels, at most eight times as large, or smaller."""
    from PIL import Image

    scale = min(ZOOMED / max(region.size), _MOST_ENLARGED)
    size = max(1, round(region.width * scale)), max(1, round(region.height * scale))
    return padded(region.resize(size, Image.Resampling.LANCZOS))
