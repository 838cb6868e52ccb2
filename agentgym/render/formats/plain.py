"""Formats that need no special tokens: one call a line (``compact``), and no calls at all (``text``)."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.call_syntax import format_call, parse_calls
from agentgym.render.formats.reading import MAX_CALLS, Reading, too_many
from agentgym.types import ToolCall, ToolSpec


class Compact:
    """One call a line, ``name: value; value`` (:mod:`agentgym.call_syntax`); for small models.

    Calls have no marks, so all of the text is both text and calls.
    """

    name = "compact"
    marks = ()

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        *lines, rest = text.split("\n", MAX_CALLS)
        if len(lines) < MAX_CALLS or not rest.strip():
            return Reading(text, parse_calls(text, tools))
        end = len(text) - len(rest)
        return Reading(text, (*parse_calls(text[:end], tools), too_many(text, end)))

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        return "\n".join(format_call(call, tools) for call in calls)


class Text:
    """No calls: the environment takes the text of the completion as it is."""

    name = "text"
    marks = ()

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        return Reading(text)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        return ""
