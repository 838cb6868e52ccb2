"""``agentgym/VisualMaze-v0``: find the way out of a maze that only a picture shows."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from agentgym.canonical import canonical
from agentgym.envs.games.maze import Cell, Direction, Plan, make_plan, moved, way
from agentgym.envs.seeing.picture_game import BLACK, COLOURS, PictureGame
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import UsageError
from agentgym.tool import tool
from agentgym.tools.pictures import Coordinate, Scale
from agentgym.types import ImagePart, Message, Task

_KNOBS = ("size", "loops")
_NEAREST = 2  # steps from the start to the exit, at least
NOW = "The maze now:"


class VisualMazeEnv(PictureGame):
    """Find the way out of a maze. A picture shows walls, agent and exit; texts tell nothing about them.

    A step into a wall changes nothing, and no text says so. A policy that does not see can only guess a sequence of
    moves. The reward is 1 for the exit and ``-step_cost`` for every turn.

    Args:
        size: cells along each side, 2 to 16.
        loops: share of removable walls that are missing, 0 to 1.
        picture: side of the picture in pixels: a multiple of 28 or of 32; a cell needs at least 8.
        actions: ``move`` by a direction, ``click`` on the next cell, or ``both``.
        coordinates: scale of ``click``: ``pixels`` of the picture, or ``normalised``, 0 to 1000.
        look: offer ``crop``, ``zoom`` and ``look_at``, too.
        blank: show white pictures of the same size, as a control for policies that see.
        step_cost: cost of a turn, taken off the reward.
        max_turns: turns after which an episode is truncated; None allows 3 for each cell along a side.

    Raises:
        UsageError: a value is out of range.

    Example:
        >>> env = VisualMazeEnv(size=3, picture=64)
        >>> observation, info = env.reset(seed=0)
        >>> [type(part).__name__ for part in observation[0].content]
        ['TextPart', 'ImagePart']
        >>> env.step("move: north")[0][0].text
        'The maze now:'
    """

    action_sets: ClassVar = {"move": ("move",), "click": ("click",), "both": ("move", "click")}
    state_names = ("plan", "_at")
    plan = SinceReset[Plan]()
    """Maze of the current episode."""
    _at: Cell = (0, 0)

    def __init__(  # noqa: PLR0913  (an option each)
        self,
        *,
        size: int = 4,
        loops: float = 0.1,
        picture: int = 224,
        actions: str = "move",
        coordinates: Scale = "pixels",
        look: bool = False,
        blank: bool = False,
        step_cost: float = 0.0,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if not 2 <= size <= 16 or not 0 <= loops <= 1 or step_cost < 0:
            raise UsageError("size must be between 2 and 16, loops between 0 and 1, step_cost at least 0")
        self._step_cost = step_cost
        super().__init__(
            {"size": size, "loops": loops},
            num_cells=size,
            picture=picture,
            actions=actions,
            coordinates=coordinates,
            look=look,
            blank=blank,
            max_turns=3 * size if max_turns is None else max_turns,
            render_mode=render_mode,
        )

    def begin(self, task: Task) -> str:
        knobs = {**self._knobs, **{name: task.data[name] for name in _KNOBS if name in task.data}}
        self._num_cells = int(knobs["size"])
        plan = make_plan(self.np_random, self._num_cells, knobs["loops"])
        cells = [(row, column) for row in range(plan.size) for column in range(plan.size)]
        while not _NEAREST <= len(way(plan, plan.start)) <= 2 * plan.size:  # some pair of cells is two steps apart
            start, goal = (cells[int(at)] for at in self.np_random.choice(len(cells), size=2, replace=False))
            plan = Plan(plan.size, plan.passages, start, goal)
        self.plan, self._at = plan, plan.start
        return "Lead the blue square to the green one. Black lines are walls."

    @tool
    def move(self, direction: Direction) -> list[str | ImagePart]:
        """Go to the next cell; a wall stops you.

        Args:
            direction: Where to; north is up.
        """
        return self._go(moved(self._at, direction))

    @tool
    def click(self, x: Coordinate, y: Coordinate) -> list[str | ImagePart]:
        """Click a cell next to the blue square to go there; a wall stops you.

        Args:
            x: From the left.
            y: From the top.
        """
        return self._go(self.cell_at(x, y))

    def _go(self, to: Cell | None) -> list[str | ImagePart]:
        self.charge(self._step_cost, "step")
        if to is not None and (self._at, to) in self.plan.passages:
            self._at = to
        if self._at == self.plan.goal:
            self.finish(1.0)
        return [NOW, self.picture()]

    def draw(self) -> np.ndarray:
        pixels, cell, size = self.blank(), self.cell, self.plan.size
        thick = max(1, cell // 12)
        self.fill_cell(pixels, *self.plan.goal, COLOURS["green"])
        self.fill_cell(pixels, *self._at, COLOURS["blue"])
        for row in range(size):
            for column in range(size):
                top, left = self.margin + row * cell, self.margin + column * cell
                exits = self.plan.exits((row, column))
                if "north" not in exits:
                    pixels[top : top + thick, left : left + cell] = BLACK
                if "south" not in exits:
                    pixels[top + cell - thick : top + cell, left : left + cell] = BLACK
                if "west" not in exits:
                    pixels[top : top + cell, left : left + thick] = BLACK
                if "east" not in exits:
                    pixels[top : top + cell, left + cell - thick : left + cell] = BLACK
        return pixels

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def state_key(self) -> str:
        return canonical([self._at, self.plan.goal])

    def oracle(self) -> Message:
        """Return a step on the shortest path."""
        direction = way(self.plan, self._at)[0]
        if "move" in self._tools:
            return self.move_of("move", direction=direction)
        x, y = self.middle_of(*moved(self._at, direction))
        return self.move_of("click", x=x, y=y)

    def admissible_actions(self) -> tuple[str, ...]:
        """Return all moves, or clicks on all cells, since the possible ones are what the picture shows."""
        if "move" in self._tools:
            return tuple(f"move: {direction}" for direction in ("north", "east", "south", "west"))
        cells = (self.middle_of(row, column) for row in range(self.plan.size) for column in range(self.plan.size))
        return tuple(f"click: {x}; {y}" for x, y in cells)
