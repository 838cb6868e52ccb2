"""Games of one player, who moves by tools; drawn from a seed, with a state of a few attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentgym.call_syntax import format_call
from agentgym.env.tasks import SeededTasks
from agentgym.env.tool_env import ToolEnv
from agentgym.types import Message, RewardRole, Task, ToolCall


class SoloGame(ToolEnv):
    """Base of the games that one player plays against chance or a rule.

    Args:
        knobs: settings that a task's data hold, so that a task is the same in every environment.
    """

    state_names: ClassVar[tuple[str, ...]]
    """The attributes that change in an episode; their values are never changed in place."""

    def __init__(self, knobs: Mapping[str, object], *, max_turns: int, render_mode: str | None) -> None:
        self._knobs = dict(knobs)
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    def charge(self, cost: float, name: str) -> None:
        """Take a cost off this turn's reward, if it costs anything."""
        if cost:
            self.award(-cost, name, RewardRole.COST)

    def move_of(self, name: str, **arguments: object) -> Message:
        """A call of a tool as the assistant message that makes it."""
        call = ToolCall(name, arguments, "0")
        return Message("assistant", format_call(call, self.tools), (call,))

    def tasks(self, split: str) -> Sequence[Task]:
        """1,000,000 to train on, 1,000 to validate, 1,000 to test; they differ by seed alone."""
        return SeededTasks(split, 1_000_000 if split == "train" else 1_000, self._knobs)

    def dump_state(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.state_names)

    def load_state(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(self.state_names, state, strict=True):
            setattr(self, name, value)
