"""``agentgym/Maze-v0``: find the way out of a maze in which only adjacent walls are visible.

After LMRL-Gym's maze ("LMRL Gym: Benchmarks for Multi-Turn Reinforcement Learning with Language Models", Abdulhai et
al., 2023), which has a fully and a partially observed version. Mazes and texts are agentgym's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from agentgym.canonical import canonical
from agentgym.envs.games.solo_game import SoloGame
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import ToolError, UsageError
from agentgym.tool import tool
from agentgym.types import Message, Task

Cell = tuple[int, int]
"""Row from the north and column from the west, both from 0."""
Direction = Literal["north", "east", "south", "west"]
STEPS: dict[Direction, Cell] = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}
_KNOBS = ("size", "loops")


@dataclass(frozen=True, slots=True)
class Plan:
    """A maze: passages between cells, start, and exit."""

    size: int
    passages: frozenset[tuple[Cell, Cell]] = field(repr=False)
    """Pairs of connected cells, in both orders."""
    start: Cell
    goal: Cell

    def exits(self, cell: Cell) -> tuple[Direction, ...]:
        """Return the directions of a cell's passages."""
        return tuple(name for name in STEPS if (cell, moved(cell, name)) in self.passages)


def moved(cell: Cell, direction: Direction) -> Cell:
    """Return the neighbour of a cell."""
    row, column = STEPS[direction]
    return (cell[0] + row, cell[1] + column)


def make_plan(rng: np.random.Generator, size: int, loops: float) -> Plan:
    """Make a maze by randomised depth-first search, and remove the share ``loops`` of the remaining walls.

    Example:
        >>> plan = make_plan(np.random.default_rng(0), 4, 0.0)
        >>> len(plan.passages) // 2
        15
    """
    cells = [(row, column) for row in range(size) for column in range(size)]
    joined: set[tuple[Cell, Cell]] = set()
    path, seen = [cells[int(rng.integers(len(cells)))]], set()
    seen.add(path[0])
    while path:
        fresh = [n for d in STEPS if (n := moved(path[-1], d)) not in seen and n in set(cells)]
        if not fresh:
            path.pop()
            continue
        chosen = fresh[int(rng.integers(len(fresh)))]
        joined |= {(path[-1], chosen), (chosen, path[-1])}
        seen.add(chosen)
        path.append(chosen)
    walls = [(a, b) for a in cells for d in ("east", "south") if (b := moved(a, d)) in seen and (a, b) not in joined]
    for a, b in walls:
        if rng.random() < loops:
            joined |= {(a, b), (b, a)}
    start, goal = (cells[int(at)] for at in rng.choice(len(cells), size=2, replace=False))
    return Plan(size, frozenset(joined), start, goal)


def way(plan: Plan, cell: Cell) -> tuple[Direction, ...]:
    """Return the shortest path from a cell to the exit."""
    came: dict[Cell, tuple[Cell, Direction] | None] = {cell: None}
    left = deque([cell])
    while left:
        here = left.popleft()
        for direction in plan.exits(here):
            there = moved(here, direction)
            if there not in came:
                came[there] = (here, direction)
                left.append(there)
    steps: list[Direction] = []
    at = plan.goal
    while (step := came[at]) is not None:
        at, direction = step
        steps.append(direction)
    return tuple(reversed(steps))


class MazeEnv(SoloGame):
    """Find the way out of a maze. The agent sees only the passages of its own cell.

    The reward is 1 for getting out and ``-step_cost`` for every turn.

    Args:
        size: cells along each side, 2 to 30.
        loops: share of removable walls that are missing, 0 to 1; with 0 there is exactly one path between any two
            cells.
        shows_position: every observation contains the positions of the agent and the exit.
        step_cost: cost of a turn, taken off the reward.
        max_turns: turns after which an episode is truncated; None allows 4 per cell.

    Raises:
        UsageError: a value is out of range.

    Example:
        >>> env = MazeEnv(size=4)
        >>> env.reset(seed=3)[0][0].text
        'Find the way out of a maze of 4 by 4 cells. Passages: south, west.'
        >>> env.step("move: east")[0][0].text
        'Error: There is a wall. Passages: south, west.'
    """

    state_names = ("plan", "_at")
    plan = SinceReset[Plan]()
    """Maze of the current episode."""
    _at: Cell = (0, 0)

    def __init__(
        self,
        *,
        size: int = 5,
        loops: float = 0.1,
        shows_position: bool = False,
        step_cost: float = 0.01,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if not 2 <= size <= 30 or not 0 <= loops <= 1 or step_cost < 0:
            raise UsageError("size must be between 2 and 30, loops between 0 and 1, step_cost at least 0")
        self._shows_position, self._step_cost = shows_position, step_cost
        limit = 4 * size * size if max_turns is None else max_turns
        super().__init__({"size": size, "loops": loops}, max_turns=limit, render_mode=render_mode)

    def start(self, task: Task) -> str:
        knobs = {**self._knobs, **{name: task.data[name] for name in _KNOBS if name in task.data}}
        self.plan = make_plan(self.np_random, knobs["size"], knobs["loops"])
        self._at = self.plan.start
        return f"Find the way out of a maze of {knobs['size']} by {knobs['size']} cells. {self._seen()}"

    @tool
    def move(self, direction: Direction) -> str:
        """Go to the next cell.

        Args:
            direction: Where to.
        """
        self.charge(self._step_cost, "step")
        if direction not in self.plan.exits(self._at):
            raise ToolError(f"There is a wall. {self._seen()}", "wall")
        self._at = moved(self._at, direction)
        if self._at == self.plan.goal:
            self.finish(1.0)
            return "You are out."
        return self._seen()

    def _seen(self) -> str:
        passages = f"Passages: {', '.join(self.plan.exits(self._at))}."
        if not self._shows_position:
            return passages
        (row, column), (goal_row, goal_column) = self._at, self.plan.goal
        return f"Row {row}, column {column}; the exit: row {goal_row}, column {goal_column}. {passages}"

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def state_key(self) -> str:
        return canonical([self._at, self.plan.goal])

    def oracle(self) -> Message:
        """Return a step on the shortest path, which an agent that sees only passages cannot know."""
        return self.move_of("move", direction=way(self.plan, self._at)[0])

    def admissible_actions(self) -> tuple[str, ...]:
        return tuple(f"move: {direction}" for direction in self.plan.exits(self._at))
