"""Base class of games for one player, who moves with tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentgym.call_syntax import format_call
from agentgym.env.tasks import SeededTasks
from agentgym.env.tool_env import ToolEnv
from agentgym.types import Message, RewardRole, Task, ToolCall


class SoloGame(ToolEnv):
    """A game of one player against chance or a rule, drawn from a seed, whose state is a few attributes.

    Args:
        knobs: settings that are stored in a task's data, so that a task is the same in every environment.
    """

    state_names: ClassVar[tuple[str, ...]]
    """Names of the attributes that change in an episode. Their values must never be changed in place."""

    def __init__(self, knobs: Mapping[str, object], *, max_turns: int, render_mode: str | None) -> None:
        self._knobs = dict(knobs)
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    def charge(self, cost: float, name: str) -> None:
        """Take a cost off this turn's reward, unless it is 0."""
        if cost:
            self.award(-cost, name, RewardRole.COST)

    def move_of(self, name: str, **arguments: object) -> Message:
        """Return the assistant message with a call of a tool."""
        call = ToolCall(name, arguments, "0")
        return Message("assistant", format_call(call, self.tools), (call,))

    def tasks(self, split: str) -> Sequence[Task]:
        """Return 1,000,000 tasks for training, 1,000 for validation or 1,000 for testing, which differ only in their
        seed.
        """
        return SeededTasks(split, 1_000_000 if split == "train" else 1_000, self._knobs)

    def dump_state(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.state_names)

    def load_state(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(self.state_names, state, strict=True):
            setattr(self, name, value)
