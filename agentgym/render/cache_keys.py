"""Keys of rendered texts in caches: everything of a message that determines its text."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.render.formats.reading import as_json
from agentgym.types import Message, ToolCall, ToolSpec


class ReplyKey:
    """A cache key of a message: the parts that a template sees."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self._key = (message.role, message.content, message.result.name if message.result else "")

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReplyKey) and other._key == self._key


class ActionKey:
    """A cache key of a demonstrated action: everything that determines its text."""

    def __init__(self, action: Message, tools: Sequence[ToolSpec], is_open: bool | None) -> None:
        self.action, self.tools, self.is_open = action, tuple(tools), is_open
        calls = [[call.name, dict(call.arguments)] for call in action.calls if isinstance(call, ToolCall)]
        self._key = (action.text, action.answer, action.thinking, as_json(calls), is_open)
        self.size = sum(len(str(part)) for part in self._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActionKey) and other._key == self._key and other.tools == self.tools
