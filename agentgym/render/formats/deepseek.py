"""DeepSeek's calls between special tokens: V3 and R1 with a fenced JSON block, V3.1 with bare JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentgym.render.formats.reading import (
    Block,
    NotReadableError,
    Reading,
    as_json,
    json_call,
    json_value,
    one_call,
    read_blocks,
)
from agentgym.types import Call, ToolCall, ToolSpec

_SEP = "<｜tool▁sep｜>"
_FENCED = re.compile(r"(?:function)?" + re.escape(_SEP) + r"([^\n`]*)\n?```(?:json)?\s*(.*?)\s*(?:```|\Z)", re.DOTALL)


class DeepSeek:
    """``<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME`` and fenced JSON, or ``NAME<｜tool▁sep｜>{...}``.

    Example:
        >>> DeepSeek().parse("<｜tool▁call▁begin｜>look<｜tool▁sep｜>{}<｜tool▁call▁end｜>", []).calls
        (ToolCall(name='look', arguments={}, id='0'),)
    """

    name = "deepseek"
    marks = (
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "```",
    )

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""

        def read(block: Block, call_id: str) -> tuple[Call]:
            return one_call(block, lambda: _call(block.body, call_id))

        reading = read_blocks(text, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", read)
        said = reading.text.replace("<｜tool▁calls▁begin｜>", "").replace("<｜tool▁calls▁end｜>", "")
        return Reading(said.strip(), reading.calls)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        bodies = []
        for call in calls:
            written = as_json(dict(call.arguments), self.marks)
            bodies.append(f"<｜tool▁call▁begin｜>function{_SEP}{call.name}\n```json\n{written}\n```<｜tool▁call▁end｜>")
        return "<｜tool▁calls▁begin｜>" + "\n".join(bodies) + "<｜tool▁calls▁end｜>"


def _call(body: str, call_id: str) -> ToolCall:
    fenced = _FENCED.match(body.strip())
    if fenced is not None:
        name, arguments = fenced.groups()
    else:
        name, found, arguments = body.partition(_SEP)
        if not found:
            raise NotReadableError(f"expected NAME{_SEP}{{...}}")
    return json_call({"name": name.strip(), "arguments": json_value(arguments)}, call_id)
