"""Formats without special tokens: one call per line (``compact``), also beside words, and no calls (``text``)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from agentgym.call_syntax import format_call, is_call_line, parse_calls
from agentgym.render.formats.reading import INVENTED, MAX_CALLS, Reading, invented_rest, too_many
from agentgym.types import ToolCall, ToolSpec


class Compact:
    """One call per line, ``name: value; value`` (:mod:`agentgym.call_syntax`); for small models.

    Calls have no marks, so the same text is returned as text and as calls.
    """

    name = "compact"
    marks = ()

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""
        if (made_up := _made_up(text, tools)) is not None:
            return Reading(text, (*self.parse(text[:made_up], tools).calls, invented_rest(text, made_up)))
        *lines, rest = text.split("\n", MAX_CALLS)
        if len(lines) < MAX_CALLS or not rest.strip():
            return Reading(text, parse_calls(text, tools))
        end = len(text) - len(rest)
        return Reading(text, (*parse_calls(text[:end], tools), too_many(text, end)))

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        return "\n".join(format_call(call, tools) for call in calls)


class CompactOrWords(Compact):
    """``compact`` for environments that take words: a line is a call if it begins as a call of a known tool does.

    All other lines are words. A line of words that would be read as a call is written as a JSON string.

    Example:
        >>> look, form = ToolSpec("look", "", {"properties": {}}), CompactOrWords()
        >>> form.parse("Look at this: a mug.", [look])
        Reading(text='Look at this: a mug.', calls=())
        >>> form.written("look", [look]), form.parse('"look"', [look]).text, len(form.parse("look", [look]).calls)
        ('"look"', 'look', 1)
    """

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""
        if (made_up := _made_up(text, tools)) is not None:
            before = self.parse(text[:made_up], tools)
            return Reading(before.text, (*before.calls, invented_rest(text, made_up)))
        lines = text.split("\n")
        called = [line if is_call_line(line, tools) else "" for line in lines]
        if not any(called):
            return Reading("\n".join(map(_unquoted, lines)).strip())
        # blanks in place of words keep the positions of malformed calls
        calls = "\n".join(kept or " " * len(line) for kept, line in zip(called, lines, strict=True))
        words = "\n".join(_unquoted(line) for kept, line in zip(called, lines, strict=True) if not kept)
        return Reading(words.strip(), super().parse(calls, tools).calls)

    def written(self, text: str, tools: Sequence[ToolSpec]) -> str:
        """Return words as text that :meth:`parse` reads back as words."""
        lines = text.split("\n")
        return "\n".join(
            json.dumps(line, ensure_ascii=False) if is_call_line(line, tools) or _unquoted(line) != line else line
            for line in lines
        )


def _made_up(text: str, tools: Sequence[ToolSpec]) -> int | None:
    """Return the position of a result that the completion itself wrote between two calls, None if there is none."""
    lines = text.split("\n")
    called = [at for at, line in enumerate(lines) if is_call_line(line, tools)]
    for at, line in enumerate(lines):
        if called and called[0] < at < called[-1] and at not in called and INVENTED.match(line):
            return sum(len(before) + 1 for before in lines[:at])
    return None


def _unquoted(line: str) -> str:
    """Return the text of a line that is a JSON string, and every other line as it is."""
    bare = line.strip()
    if len(bare) < 2 or bare[0] != '"' or bare[-1] != '"':
        return line
    try:
        said = json.loads(bare)
    except ValueError:
        return line
    return said if isinstance(said, str) else line


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
