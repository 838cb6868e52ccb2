"""Shared parts of all tool-call formats: parsed completions, and JSON from a model.

The parser of every format takes time linear in the text and raises no error. A call that cannot be parsed becomes a
:class:`~agentgym.types.MalformedCall` and does not affect the others.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NoReturn, Protocol

from agentgym.canonical import MAX_DEPTH, read_arguments, require_writable
from agentgym.types import Call, MalformedCall, ToolCall, ToolSpec

Span = tuple[int, int]
"""A half-open range of characters."""

MAX_CALLS = 1_000
"""Most calls that are read from a completion; the rest is one malformed call. The cost of a call with invalid JSON is
proportional to its position, so many of them would take quadratic time."""

SHOWN = 200
"""Most characters that are kept of a malformed text."""

INVENTED: Final = re.compile(
    r"(?:^|(?<=[>\]})`]))[ \t]*+(?:<\|?tool_(?:response|result|output)|\[TOOL_RESULTS\]|<｜tool▁outputs?▁begin｜>"
    r"|<\|observation\|>|```tool_output"
    r"|<\|start\|>functions\.|<\|(?:start_header_id|header_start)\|>(?:ipython|tool)|Observation:)",
    re.MULTILINE,
)
"""Texts with which chat templates and ReAct begin a tool's result."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A parsed completion without thinking: the text outside of calls, and the calls in order."""

    text: str
    calls: tuple[Call, ...] = ()

    def calls_after(self, num_characters: int) -> tuple[Call, ...]:
        """Return the calls with spans shifted by the characters that precede the parsed text."""
        return tuple(
            replace(call, span=(call.span[0] + num_characters, call.span[1] + num_characters))
            if isinstance(call, MalformedCall)
            else call
            for call in self.calls
        )


class ToolFormat(Protocol):
    """A format of tool calls."""

    name: str

    @property
    def marks(self) -> Sequence[str]:
        """Texts that end a call or begin another one. :meth:`format` escapes them in arguments.

        Formats with unquoted values cannot escape them, and list none.
        """
        ...

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""
        ...

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        ...


def invented_rest(text: str, at: int) -> MalformedCall:
    """Return the rest of a completion from a made-up result on, in which there are calls, as a malformed call."""
    reason = "calls after a tool result that the completion itself wrote are not run; end the message after a call"
    return MalformedCall((at, len(text)), reason, text[at : at + SHOWN])


def too_many(text: str, at: int) -> MalformedCall:
    """Return the rest of a completion after :data:`MAX_CALLS` calls as a malformed call."""
    return MalformedCall((at, len(text)), f"more than {MAX_CALLS:,} calls", text[at : at + SHOWN])


# ---------------------------------------------------------------------------------------------------------- JSON


class NotReadableError(ValueError):
    """An error for text that is not a call; the model sees the message.

    Args:
        end: position up to which the text was read. The search for the next call continues there, so that the total
            time is linear.
    """

    def __init__(self, reason: str, end: int = 0) -> None:
        super().__init__(reason)
        self.end = end


def _refuse_constant(name: str) -> NoReturn:
    raise NotReadableError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def json_at(text: str, at: int = 0) -> tuple[object, int]:
    """Read the JSON value at ``at``, after white space if there is any. Return the value and its end.

    Raises:
        NotReadableError: there is no JSON value, it is nested deeper than :data:`MAX_DEPTH`, or it contains a number
            that is not finite or invalid Unicode.
    """
    while at < len(text) and text[at].isspace():
        at += 1
    try:
        value, end = _DECODER.raw_decode(text, at)
    except NotReadableError:
        raise
    except RecursionError:
        raise NotReadableError(f"nested deeper than {MAX_DEPTH}", len(text)) from None
    except json.JSONDecodeError as error:
        raise NotReadableError(f"not JSON: {error}", error.pos) from None
    except ValueError as error:  # a whole number with more digits than Python converts
        raise NotReadableError(f"not JSON: {error}", at) from None
    try:
        check_value(value)
    except NotReadableError as error:
        raise NotReadableError(str(error), end) from None
    return value, end


def json_value(text: str) -> object:
    """Read a text that consists of one JSON value.

    Raises:
        NotReadableError: the text is not one JSON value.
    """
    value, end = json_at(text)
    if text[end:].strip():
        raise NotReadableError(f"not JSON: text after the value: {text[end:].strip()[:40]!r}")
    return value


_SKIPPER = json.JSONDecoder()


def json_end(text: str, at: int) -> int:
    """Return the end of the JSON object or list at ``at``, after white space if there is any; ``at`` if there is none.

    Example:
        >>> json_end('{"a": "}"}</tool_call>', 0)
        10
    """
    found = _OPENS.match(text, at)
    if found is None:
        return at
    try:
        return _SKIPPER.raw_decode(text, found.end() - 1)[1]
    except (ValueError, RecursionError):
        return at


_OPENS = re.compile(r"\s*+[{\[]")


def check_value(value: object) -> None:
    """Raise an error for arguments that cannot be recorded, as :func:`~agentgym.canonical.require_writable` does.

    Raises:
        NotReadableError: the value cannot be recorded.
    """
    try:
        require_writable(value)
    except ValueError as error:
        raise NotReadableError(str(error)) from None


def json_call(value: object, call_id: str, key: str = "arguments") -> ToolCall:
    """Return the call in ``{"name": ..., "arguments": {...}}``. The arguments may also be JSON text.

    Raises:
        NotReadableError: the value has another structure, or a key that would be lost.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise NotReadableError(f'expected {{"name": "...", "{key}": {{...}}}}')
    try:
        arguments = read_arguments(value)
    except ValueError as error:
        raise NotReadableError(str(error).replace("'arguments'", f"'{key}'")) from None
    check_value(arguments)
    return ToolCall(value["name"], arguments, call_id)


_NEXT_CALL = re.compile(
    r'\}\s*+(?:[,;]\s*+)?(?=\{\s*+"name"\s*+:\s*+"[^"\\]++"\s*+,\s*+"(?:arguments|parameters)"\s*+:)'
)


class JsonCalls:
    """Calls as JSON objects in a text. A malformed call ends where the next one begins.

    Args:
        key: key of the arguments.
    """

    def __init__(self, text: str, key: str) -> None:
        self.text, self._key = text, key

    @cached_property
    def _next_calls(self) -> tuple[list[int], list[int]]:
        """Ends of objects before a call, and the starts of those calls; computed once, for linear time."""
        found = list(_NEXT_CALL.finditer(self.text))
        return [one.start() + 1 for one in found], [one.end() for one in found]

    def next_call(self, at: int) -> tuple[int, int] | None:
        """Return the end of the first object at or after ``at`` with a call after it, and the start of that call."""
        ends, begins = self._next_calls
        index = bisect_right(ends, at)
        return (ends[index], begins[index]) if index < len(ends) else None

    def call(self, at: int, call_id: str, *, in_prose: bool) -> tuple[Call, int]:
        """Read the call at ``at``. A malformed call ends before the next one, and at the end of its line if it is in
        prose.
        """
        try:
            value, end = json_at(self.text, at)
        except NotReadableError as error:
            following = self.next_call(at)
            line_end = self.text.find("\n", at)
            end = max(error.end, len(self.text) if line_end < 0 else line_end)
            if following is not None:
                end = min(end, following[0]) if in_prose else following[0]
            return MalformedCall((at, end), str(error), self.text[at:end].strip()), end
        try:
            return json_call(value, call_id, self._key), end
        except NotReadableError as error:
            return MalformedCall((at, end), str(error), self.text[at:end]), end

    def listed(self, at: int, separators: str, first_id: int = 0) -> tuple[tuple[Call, ...], int]:
        """Read consecutive calls from ``at``. Return the calls and their end."""
        calls: list[Call] = []
        while True:
            following = None if self.text.startswith("{", at) else self.next_call(at)
            if following is not None and calls:
                if made_up := INVENTED.search(self.text, at, following[1]):
                    return (*calls, invented_rest(self.text, made_up.start())), len(self.text)
                calls.append(
                    MalformedCall((at, following[0]), "text between calls", self.text[at : following[0]][:SHOWN])
                )
                at = following[1]
            if not self.text.startswith("{", at):
                return tuple(calls), at
            if first_id + len(calls) >= MAX_CALLS:
                return (*calls, too_many(self.text, at)), len(self.text)
            call, at = self.call(at, str(first_id + len(calls)), in_prose=False)
            calls.append(call)
            while at < len(self.text) and self.text[at] in separators:
                at += 1


def listed_calls(body: str, span: Span, first_id: str) -> Sequence[Call]:
    """Read a JSON list of calls. If the list is malformed, read its calls one by one."""
    try:
        value = json_value(body)
        if not isinstance(value, list):
            raise NotReadableError("expected a JSON list of calls")
    except NotReadableError as error:
        calls, _ = JsonCalls(body, "arguments").listed(1, ", \n\t", int(first_id))
        broken: list[Call] = [replace(call, span=span) if isinstance(call, MalformedCall) else call for call in calls]
        if all(isinstance(call, ToolCall) for call in calls):
            broken.append(MalformedCall(span, str(error), body))
        return broken
    read: list[Call] = []
    for item in value:
        try:
            read.append(json_call(item, str(int(first_id) + len(read))))
        except NotReadableError as error:
            read.append(MalformedCall(span, str(error), as_json(item)))
    return read


def as_json(value: object, marks: Sequence[str] = ()) -> str:
    """Format a value as JSON without escaping non-ASCII characters.

    Args:
        marks: texts that would end the call or begin another one; their first character is escaped.

    Example:
        >>> as_json({"text": "</tool_call>"}, ("</tool_call>",))
        '{"text": "\\\\u003c/tool_call>"}'
    """
    return without_marks(json.dumps(value, ensure_ascii=False), marks, "\\u{:04x}")


def without_marks(text: str, marks: Sequence[str], escape: str) -> str:
    """Return a text in which the first character of each mark is escaped; ``escape`` formats its code point.

    In JSON and Python, marks can occur only inside quotes.
    """
    for mark in marks:
        if mark in text:
            text = text.replace(mark, escape.format(ord(mark[0])) + mark[1:])
    return text
