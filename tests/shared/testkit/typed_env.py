"""An environment with an argument of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Literal

from agentgym import Message, Task, ToolEnv, register, tool


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Size:
    width: int = 1


class Typed(ToolEnv):
    """An environment with an argument of each kind."""

    def __init__(
        self,
        today: date = date(2026, 1, 1),
        mode: Literal["plain", "noisy"] = "plain",
        strict: bool = False,
        colour: Colour = Colour.RED,
        limit: int | None = None,
        names: Sequence[str] = (),
        size: Size = Size(),  # noqa: B008
        max_turns: int = 3,
    ) -> None:
        super().__init__(max_turns=max_turns)
        self.given = (today, mode, strict, colour, limit, names, size)

    def start(self, task: Task) -> str:
        return repr(self.given)

    @tool
    def go(self) -> str:
        """Go."""
        self.finish(1.0)
        return "Gone."

    def oracle(self) -> Message:
        return self.parse_action("go")


register("Typed-v0", Typed)
