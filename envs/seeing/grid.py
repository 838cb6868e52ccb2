"""``agentgym/VisualGrid-v0``: point at the square of a colour, in one turn."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from agentgym.canonical import canonical
from agentgym.envs.games.maze import Cell
from agentgym.envs.seeing.picture_game import COLOURS, PictureGame
from agentgym.errors import ToolError, UsageError
from agentgym.tool import tool
from agentgym.tools.pictures import Coordinate, Scale
from agentgym.types import Message, RewardRole, Task

_KNOBS = ("size", "num_squares")


class VisualGridEnv(PictureGame):
    """Point at the square of the colour that the text names. Its place is drawn uniformly and only in the picture.

    A policy that does not see succeeds in one of ``size * size`` tasks. The reward is 1 for the square.

    Args:
        size: cells along each side, 2 to 16.
        num_squares: squares of different colours, 1 to 6.
        picture: side of the picture in pixels: a multiple of 28 or of 32; a cell needs at least 8.
        actions: ``click`` on a point, or ``pick`` a row and a column.
        coordinates: scale of ``click``: ``pixels`` of the picture, or ``normalised``, 0 to 1000.
        look: offer ``crop``, ``zoom`` and ``look_at``, too.
        blank: show white pictures of the same size, as a control for policies that see.
        partial: process reward for the right row alone, and for the right column alone, which makes learning faster.

    Raises:
        UsageError: a value is out of range.

    Example:
        >>> env = VisualGridEnv(size=4, picture=64)
        >>> env.reset(seed=0)[0][0].text[:24]
        'Click the yellow square.'
        >>> env.step(env.oracle())[1]
        1.0
    """

    action_sets: ClassVar = {"click": ("click",), "pick": ("pick",)}
    state_names = ("_squares", "_asked", "_is_right")
    _squares: tuple[tuple[str, Cell], ...] = ()
    _asked: str = ""
    _is_right: bool | None = None

    def __init__(  # noqa: PLR0913  (an option each)
        self,
        *,
        size: int = 4,
        num_squares: int = 3,
        picture: int = 224,
        actions: str = "click",
        coordinates: Scale = "pixels",
        look: bool = False,
        blank: bool = False,
        partial: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        if not 2 <= size <= 16 or not 1 <= num_squares <= min(len(COLOURS), size * size) or not 0 <= partial <= 0.5:
            raise UsageError(
                f"size must be between 2 and 16, num_squares between 1 and {len(COLOURS)} and no more than cells, "
                "partial between 0 and 0.5"
            )
        self._partial = partial
        super().__init__(
            {"size": size, "num_squares": num_squares},
            num_cells=size,
            picture=picture,
            actions=actions,
            coordinates=coordinates,
            look=look,
            blank=blank,
            max_turns=10 if look else 2,
            render_mode=render_mode,
        )

    def begin(self, task: Task) -> str:
        knobs = {**self._knobs, **{name: task.data[name] for name in _KNOBS if name in task.data}}
        self._num_cells = size = int(knobs["size"])
        colours = self.np_random.permutation(list(COLOURS))[: knobs["num_squares"]]
        places = self.np_random.choice(size * size, size=len(colours), replace=False)
        self._squares = tuple((str(name), divmod(int(at), size)) for name, at in zip(colours, places, strict=True))
        self._asked, self._is_right = self._squares[0][0], None
        verb = "Click" if "click" in self._tools else f"Pick row and column, from 0 to {size - 1}, of"
        return f"{verb} the {self._asked} square."

    @tool
    def click(self, x: Coordinate, y: Coordinate) -> str:
        """Click a point of the picture.

        Args:
            x: From the left.
            y: From the top.
        """
        return self._answer(self.cell_at(x, y))

    @tool
    def pick(self, row: int, column: int) -> str:
        """Pick a cell.

        Args:
            row: From the top, from 0.
            column: From the left, from 0.
        """
        most = self._num_cells - 1
        if not (0 <= row <= most and 0 <= column <= most):
            raise ToolError(f"there is no cell ({row}, {column}); rows and columns run from 0 to {most}", "no_cell")
        return self._answer((row, column))

    def _answer(self, cell: Cell | None) -> str:
        goal = self._goal
        self._is_right = cell == goal
        if cell is not None and cell != goal and self._partial:
            self.award(self._partial * sum(a == b for a, b in zip(cell, goal, strict=True)), "near", RewardRole.PROCESS)
        self.finish(float(self._is_right))
        return "Noted."

    @property
    def _goal(self) -> Cell:
        return dict(self._squares)[self._asked]

    def draw(self) -> np.ndarray:
        pixels = self.blank()
        for colour, cell in self._squares:
            self.fill_cell(pixels, *cell, COLOURS[colour], inset=0.1)
        return pixels

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def state_key(self) -> str:
        return canonical([self._asked, self._squares, self._is_right])

    def oracle(self) -> Message:
        """Return the click on the square."""
        row, column = self._goal
        if "pick" in self._tools:
            return self.move_of("pick", row=row, column=column)
        x, y = self.middle_of(row, column)
        return self.move_of("click", x=x, y=y)

    def admissible_actions(self) -> tuple[str, ...]:
        size = self._num_cells
        cells = [(row, column) for row in range(size) for column in range(size)]
        if "pick" in self._tools:
            return tuple(f"pick: {row}; {column}" for row, column in cells)
        return tuple("click: {}; {}".format(*self.middle_of(row, column)) for row, column in cells)
