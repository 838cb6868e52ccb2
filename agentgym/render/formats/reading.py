"""Parts that all tool-call formats share: a completion that has been read, marked blocks, and JSON from a model.

Every reader here takes time linear in the text, raises nothing, and keeps each call apart: one that cannot be read
becomes a :class:`~agentgym.types.MalformedCall` beside the others.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn, Protocol

from agentgym.canonical import MAX_DEPTH, require_writable
from agentgym.types import Call, MalformedCall, ToolCall, ToolSpec

Span = tuple[int, int]
"""A half-open range of characters."""

MAX_CALLS = 1_000
"""How many calls of a completion are read; what follows is one malformed call.

A call that is no JSON costs time in proportion to its position, so many of them would take quadratic time.
"""

SHOWN = 200
"""How many characters are kept of a text that is too long or broken to be read."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A completion without its thinking: the text outside of calls, and the calls in order."""

    text: str
    calls: tuple[Call, ...] = ()

    def calls_after(self, num_characters: int) -> tuple[Call, ...]:
        """Return the calls as those of a longer text, which has so many characters before the one that was read."""
        return tuple(
            replace(call, span=(call.span[0] + num_characters, call.span[1] + num_characters))
            if isinstance(call, MalformedCall)
            else call
            for call in self.calls
        )


class ToolFormat(Protocol):
    """One way to write tool calls as text."""

    name: str

    @property
    def marks(self) -> Sequence[str]:
        """Texts that end a call or begin another one; :meth:`format` escapes them in arguments.

        Formats that write values bare have no escapes, and none here.
        """
        ...

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Read a completion; thinking has been removed from it."""
        ...

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Write calls as text that :meth:`parse` reads back."""
        ...


# -------------------------------------------------------------------------------------------------------- blocks


@dataclass(frozen=True, slots=True)
class Block:
    """Text between two marks; ``span`` includes the marks."""

    body: str
    span: Span
    is_closed: bool


def blocks(text: str, opening: str, closing: str) -> Iterator[Block]:
    """Yield marked blocks. One that is not closed ends at the next opening mark, or at the end of the text.

    Example:
        >>> [block.body for block in blocks("a <x>b</x> <x>c <x>d", "<x>", "</x>")]
        ['b', 'c ', 'd']
    """
    at, closes = text.find(opening), 0
    while at >= 0:
        start = at + len(opening)
        if 0 <= closes < start:  # a mark that was found earlier is not searched for again: linear time
            closes = text.find(closing, start)
        following = text.find(opening, start)
        is_closed = closes >= 0 and (following < 0 or closes < following)
        stop = closes if is_closed else following if following >= 0 else len(text)
        yield Block(text[start:stop], (at, stop + len(closing) if is_closed else stop), is_closed)
        at = following


def outside(text: str, spans: Iterable[Span]) -> str:
    """Return the text outside of ascending spans, without white space at its ends.

    Example:
        >>> outside("I look. <x>1</x>", [(8, 16)])
        'I look.'
    """
    pieces, at = [], 0
    for start, stop in spans:
        pieces.append(text[at:start])
        at = stop
    return "".join([*pieces, text[at:]]).strip()


def read_blocks(text: str, opening: str, closing: str, read: Callable[[Block, str], Sequence[Call]]) -> Reading:
    """Read every block by ``read``, which takes the block and the id of its first call."""
    calls: list[Call] = []
    spans: list[Span] = []
    for block in blocks(text, opening, closing):
        if len(calls) >= MAX_CALLS:
            calls.append(too_many(text, block.span[0]))
            spans.append((block.span[0], len(text)))
            break
        calls += read(block, str(len(calls)))
        spans.append(block.span)
    return Reading(outside(text, spans), tuple(calls))


def too_many(text: str, at: int) -> MalformedCall:
    """Return what is left of a completion after :data:`MAX_CALLS` calls."""
    return MalformedCall((at, len(text)), f"more than {MAX_CALLS:,} calls", text[at : at + SHOWN])


# ---------------------------------------------------------------------------------------------------------- JSON


class NotReadableError(ValueError):
    """Text that is no call; the message is shown to the model.

    Args:
        end: how far the text was read; a search for the next call goes on there, so that the whole takes linear time.
    """

    def __init__(self, reason: str, end: int = 0) -> None:
        super().__init__(reason)
        self.end = end


def _refuse_constant(name: str) -> NoReturn:
    raise NotReadableError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def json_at(text: str, at: int = 0) -> tuple[object, int]:
    """Read the JSON value that begins at ``at`` or after white space there; also return where it ends.

    Raises:
        NotReadableError: no value, a value nested deeper than :data:`MAX_DEPTH`, a number that is not finite, or text
            that is not valid Unicode.
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
    except ValueError as error:  # a whole number of more digits than Python converts
        raise NotReadableError(f"not JSON: {error}", at) from None
    try:
        check_value(value)
    except NotReadableError as error:
        raise NotReadableError(str(error), end) from None
    return value, end


def json_value(text: str) -> object:
    """Read a text that is one JSON value.

    Raises:
        NotReadableError: it is not.
    """
    value, end = json_at(text)
    if text[end:].strip():
        raise NotReadableError(f"not JSON: text after the value: {text[end:].strip()[:40]!r}")
    return value


def check_value(value: object) -> None:
    """Refuse arguments that cannot be recorded, as :func:`~agentgym.canonical.require_writable` does.

    Raises:
        NotReadableError: the value is one of these.
    """
    try:
        require_writable(value)
    except ValueError as error:
        raise NotReadableError(str(error)) from None


def json_call(value: object, call_id: str, key: str = "arguments") -> ToolCall:
    """Return the call that ``{"name": ..., "arguments": {...}}`` describes; arguments may be JSON text of an object.

    Raises:
        NotReadableError: the value has another shape.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise NotReadableError(f'expected {{"name": "...", "{key}": {{...}}}}')
    arguments = value.get(key, value.get("parameters", value.get("arguments", {})))
    if isinstance(arguments, str):
        arguments = json_value(arguments)
    if not isinstance(arguments, dict):
        raise NotReadableError(f"{key} must be a JSON object")
    return ToolCall(value["name"], arguments, call_id)


def one_call(block: Block, read: Callable[[], ToolCall]) -> tuple[Call]:
    """Return the call that ``read`` makes of a block, or a malformed call with the reason."""
    try:
        return (read(),)
    except NotReadableError as error:
        return (MalformedCall(block.span, str(error), block.body.strip()),)


_NEXT_CALL = re.compile(
    r'\}\s*+(?:[,;]\s*+)?(?=\{\s*+"name"\s*+:\s*+"[^"\\]++"\s*+,\s*+"(?:arguments|parameters)"\s*+:)'
)


class JsonCalls:
    """Calls as JSON objects in a text. One that cannot be read ends where the next one begins.

    Args:
        key: what the arguments stand under.
    """

    def __init__(self, text: str, key: str) -> None:
        self.text, self._key = text, key

    @cached_property
    def _next_calls(self) -> tuple[list[int], list[int]]:
        """Ends of objects that a call follows, and where those calls begin; found once, for linear time."""
        found = list(_NEXT_CALL.finditer(self.text))
        return [one.start() + 1 for one in found], [one.end() for one in found]

    def next_call(self, at: int) -> tuple[int, int] | None:
        """Return where an object ends at or after ``at`` that a call follows, and where that call begins."""
        ends, begins = self._next_calls
        index = bisect_right(ends, at)
        return (ends[index], begins[index]) if index < len(ends) else None

    def call(self, at: int, call_id: str, *, in_prose: bool) -> tuple[Call, int]:
        """Read the call at ``at``; a malformed one ends before the next one, and with its line if it is in prose."""
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
        """Read calls from ``at`` on, one object after another; also return where they end."""
        calls: list[Call] = []
        while True:
            following = None if self.text.startswith("{", at) else self.next_call(at)
            if following is not None and calls:
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
    """Read a JSON list of calls; where the list is broken, its calls are read one by one."""
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
    """Write a value as JSON, with its characters as they are.

    Args:
        marks: texts that would end the call or begin another one; their first character is written as an escape.

    Example:
        >>> as_json({"text": "</tool_call>"}, ("</tool_call>",))
        '{"text": "\\\\u003c/tool_call>"}'
    """
    return without_marks(json.dumps(value, ensure_ascii=False), marks, "\\u{:04x}")


def without_marks(text: str, marks: Sequence[str], escape: str) -> str:
    """Return a text whose marks begin with an escape, which ``escape`` formats from a character's number.

    Outside of quotes, JSON and Python hold no marks.
    """
    for mark in marks:
        if mark in text:
            text = text.replace(mark, escape.format(ord(mark[0])) + mark[1:])
    return text


# ---------------------------------------------------------------------------------------------- values without types


def typed(text: str, name: str, tool: str, tools: Sequence[ToolSpec]) -> object:
    """Return an argument that a format writes as bare text, by the type that the tool's schema gives it.

    Where the schema says string, or nothing, the text stays text unless it can only be meant as JSON.

    Example:
        >>> spec = ToolSpec("f", "", {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}})
        >>> typed("7", "a", "f", [spec]), typed("7", "b", "f", [spec])
        ('7', 7)
    """
    spec = next((one for one in tools if one.name == tool), None)
    schema = spec.parameters.get("properties", {}).get(name, {}) if spec else {}
    kinds = {schema.get("type")} if not isinstance(schema.get("type"), list) else set(schema["type"])
    kinds |= {part.get("type") for part in schema.get("anyOf", ()) if isinstance(part, Mapping)}
    if kinds & {"string"}:
        return None if text == "null" and "null" in kinds else text
    try:
        return json_value(text)
    except NotReadableError:
        pass
    return {"True": True, "False": False, "None": None}.get(text.strip(), text)
