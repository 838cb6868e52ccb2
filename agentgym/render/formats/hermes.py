"""``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes, Qwen2.5, Qwen3, SmolLM3."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.render.formats.reading import (
    Block,
    Reading,
    as_json,
    json_call,
    json_value,
    listed_calls,
    one_call,
    read_blocks,
)
from agentgym.types import Call, ToolCall, ToolSpec


class Hermes:
    """JSON between tags: one call, or a list of calls as SmolLM2 writes them.

    Example:
        >>> Hermes().parse('Hm. <tool_call>{"name": "look", "arguments": {}}</tool_call>', [])
        Reading(text='Hm.', calls=(ToolCall(name='look', arguments={}, id='0'),))
    """

    name = "hermes"
    marks = ("<tool_call>", "</tool_call>")

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""

        def read(block: Block, call_id: str) -> Sequence[Call]:
            if block.body.lstrip().startswith("["):
                return listed_calls(block.body.strip(), block.span, call_id)
            return one_call(block, lambda: json_call(json_value(block.body), call_id))

        return read_blocks(text, "<tool_call>", "</tool_call>", read)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        bodies = (as_json({"name": call.name, "arguments": dict(call.arguments)}, self.marks) for call in calls)
        return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
