"""Base class of games whose state is only in a picture: texts are the same whatever the state is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from agentgym.envs.games.solo_game import SoloGame
from agentgym.errors import UsageError, require_known
from agentgym.tools.look import LOOKING, LookTools
from agentgym.tools.pictures import Box, Scale, Screen, check_size, image_part, png_of
from agentgym.types import Call, ImagePart, Message, Observation, Task, TextPart, ToolCall

Colour = tuple[int, int, int]
WHITE: Colour = (255, 255, 255)
BLACK: Colour = (0, 0, 0)
COLOURS: Mapping[str, Colour] = {
    "red": (214, 39, 40),
    "blue": (31, 97, 200),
    "green": (30, 150, 60),
    "yellow": (240, 200, 20),
    "purple": (130, 60, 180),
    "black": BLACK,
}

_LEAST_CELL = 8
"""Pixels along a cell's side."""


class PictureGame(LookTools, SoloGame):
    """A game on a board of square cells, drawn as a picture. Subclasses draw it and name their sets of tools.

    Args:
        knobs: settings that are stored in a task's data.
        num_cells: cells along each side of the board.
        picture: side of the square picture in pixels: a multiple of 28 or of 32. Multiples of 224 are both.
        actions: name of a set of tools, of :attr:`action_sets`.
        coordinates: scale of coordinates: ``pixels`` of the picture, or ``normalised``, 0 to 1000.
        look: offer ``crop``, ``zoom`` and ``look_at``, too (:mod:`agentgym.tools.look`).
        blank: show white pictures of the same size, so that no policy can see the state.

    Raises:
        ConfigError: every processor would resize such a picture.
        UsageError: an unknown name, or cells below 8 pixels.
    """

    needs_images = True
    action_sets: ClassVar[Mapping[str, tuple[str, ...]]]
    """Sets of tools, by the name of the set."""

    def __init__(  # noqa: PLR0913  (an option each)
        self,
        knobs: Mapping[str, object],
        *,
        num_cells: int,
        picture: int,
        actions: str,
        coordinates: Scale,
        look: bool,
        blank: bool,
        max_turns: int,
        render_mode: str | None,
    ) -> None:
        require_known("set of actions", actions, self.action_sets)
        side, _ = check_size((picture, picture), "picture")
        self.screen = Screen(side, side, coordinates)
        self._num_cells = num_cells
        if self.cell < _LEAST_CELL:
            raise UsageError(
                f"a picture of {picture} pixels gives {num_cells} cells a side {self.cell} each; "
                f"{_LEAST_CELL} are needed"
            )
        self._tools = {name: self._tools[name] for name in (*self.action_sets[actions], *(LOOKING if look else ()))}
        self.look_scale, self._is_blank = coordinates, blank
        super().__init__(knobs, max_turns=max_turns, render_mode=render_mode)

    # ------------------------------------------------------------------------------------ methods to implement

    def draw(self) -> np.ndarray:
        """Return the colours of the current state, ``[side, side, 3]`` of ``uint8``."""
        raise NotImplementedError(f"{type(self).__name__} must implement draw()")

    def begin(self, task: Task) -> str:
        """Set up the state for a task and return the instruction, which must not depend on what the picture shows."""
        raise NotImplementedError(f"{type(self).__name__} must implement begin(task)")

    # ------------------------------------------------------------------------------------------- for subclasses

    @property
    def cell(self) -> int:
        """Side of a cell in pixels; what is left of the picture is a margin."""
        return self.screen.width // self._num_cells

    @property
    def margin(self) -> int:
        """Pixels left of and above the board."""
        return (self.screen.width - self.cell * self._num_cells) // 2

    def cell_at(self, x: float, y: float) -> tuple[int, int] | None:
        """Return row and column of the cell at a point; None on the margin.

        Raises:
            ToolError: the point is outside the picture.
        """
        column, row = ((at - self.margin) // self.cell for at in self.screen.point(x, y))
        is_inside = 0 <= row < self._num_cells and 0 <= column < self._num_cells
        return (row, column) if is_inside else None

    def middle_of(self, row: int, column: int) -> tuple[int, int]:
        """Return the coordinates of a cell's middle, on the scale of the tools."""
        x, y = (self.margin + at * self.cell + self.cell // 2 for at in (column, row))
        return self.screen.said(x, y)

    def blank(self) -> np.ndarray:
        """Return a white picture."""
        return np.full((self.screen.height, self.screen.width, 3), WHITE, np.uint8)

    def fill_cell(self, pixels: np.ndarray, row: int, column: int, colour: Colour, inset: float = 0.2) -> None:
        """Paint a square into a cell.

        Args:
            pixels: the picture, which is changed.
            row: from the top.
            column: from the left.
            colour: red, green and blue.
            inset: share of the cell's side that stays free on each side.
        """
        free = max(1, round(inset * self.cell))
        top, left = self.margin + row * self.cell, self.margin + column * self.cell
        pixels[top + free : top + self.cell - free, left + free : left + self.cell - free] = colour

    def picture(self) -> ImagePart:
        """Return the current state as a picture."""
        return image_part(png_of(self.blank() if self._is_blank else self.draw()))

    def looked_box(self, call: Call) -> Box | None:
        if isinstance(call, ToolCall) and call.name == "click":
            return self.screen.spot(call.arguments.get("x"), call.arguments.get("y"))
        return super().looked_box(call)

    def dump_state(self) -> tuple[object, ...]:
        return super().dump_state(), self.shown

    def load_state(self, state: tuple[Any, ...]) -> None:
        own, self.shown = state
        super().load_state(own)

    def start(self, task: Task) -> Observation:
        told = self.begin(task)
        if "click" in self._tools or "crop" in self._tools:
            told = f"{told} {self.screen.hint}"
        return (Message("user", (TextPart(told), self.picture())),)
