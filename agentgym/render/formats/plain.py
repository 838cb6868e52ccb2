"""Formats without special tokens: one call per line (``compact``), and no calls at all (``text``)."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.call_syntax import format_call, parse_calls
from agentgym.render.formats.reading import MAX_CALLS, Reading, too_many
from agentgym.types import ToolCall, ToolSpec


class Compact:
    """One call per line, ``name: value; value`` (:mod:`agentgym.call_syntax`); for small models.

    Calls have no marks, so the same text is returned as text and as calls.
    """

    name = "compact"
    marks = ()

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""
        *lines, rest = text.split("\n", MAX_CALLS)
        if len(lines) < MAX_CALLS or not rest.strip():
            return Reading(text, parse_calls(text, tools))
        end = len(text) - len(rest)
        return Reading(text, (*parse_calls(text[:end], tools), too_many(text, end)))

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        return "\n".join(format_call(call, tools) for call in calls)


class Text:
    """No calls: the environment gets the text of the completion unchanged."""

    name = "text"
    marks = ()

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""
        return Reading(text)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        return ""
