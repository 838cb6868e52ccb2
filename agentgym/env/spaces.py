"""Gymnasium spaces for messages, so that its wrappers and its checker work on environments for language agents."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium

from agentgym.tool import random_call
from agentgym.types import Message, Observation, ToolSpec


class MessageSpace(gymnasium.Space[Observation]):
    """The space of observations: tuples of messages."""

    def __init__(self) -> None:
        super().__init__(shape=None, dtype=None)

    def sample(self, mask: object = None, probability: object = None) -> Observation:
        """Return an observation of one short user message."""
        return (Message("user", f"observation {int(self.np_random.integers(1000))}"),)

    def contains(self, x: object) -> bool:
        """Return True for a tuple of messages."""
        return isinstance(x, tuple) and all(isinstance(message, Message) for message in x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageSpace)

    __hash__ = None  # type: ignore[assignment]


class ActionSpace(gymnasium.Space[Message | str]):
    """The space of actions: assistant messages, and text as a person types it."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        super().__init__(shape=None, dtype=None)
        self.tools = tuple(tools)

    def sample(self, mask: object = None, probability: object = None) -> Message | str:
        """Return a call of a random tool with random arguments, or a random word if there are no tools."""
        if not self.tools:
            return ("look", "wait", "go")[int(self.np_random.integers(3))]
        spec = self.tools[int(self.np_random.integers(len(self.tools)))]
        return Message("assistant", calls=(random_call(spec, self.np_random),))

    def contains(self, x: object) -> bool:
        """Return True for an assistant message or text."""
        return isinstance(x, str) or (isinstance(x, Message) and x.role == "assistant")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActionSpace) and other.tools == self.tools

    __hash__ = None  # type: ignore[assignment]
