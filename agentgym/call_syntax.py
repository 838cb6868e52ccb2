"""The compact call syntax: one tool call per line. Tiny models can learn it, and people can type it.

::

    go_to: cabinet 1
    take: mug 1; cabinet 1
    search: query=tallest tower; k=5
    search: {"query": "tallest tower", "k": 5}

A line is a tool's name, a colon, and values separated by semicolons in the order of the tool's schema; ``key=value``
names a parameter. Commas separate values if all of them are numbers, as in ``click: 120, 45``. Text values are written
without quotes, or as a JSON string if they contain ``;``, ``=`` or line breaks. Values of other types are written as
JSON. A JSON object of all arguments by name may stand for the values.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from agentgym.canonical import read_json, readable_json, require_writable
from agentgym.json_schema.reading import described, properties, type_names, types_of
from agentgym.json_schema.validation import accepts
from agentgym.types import Call, Json, JsonSchema, MalformedCall, Message, ToolCall, ToolSpec

_MAX_VALUES = 100
"""Most values without names that a call of an unknown tool may have."""

_LINE = re.compile(r"\s*([A-Za-z_]\w*)\s*(?::(.*))?$", re.DOTALL)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_KEY = re.compile(r'\s*([^;="]*?[^\s;="])\s*=')
_FIRST_KEY = re.compile(r"""\{\s*+["']?([^"':\s]++)["']?\s*+:""")
_NUMBERS = re.compile(r"\s*-?\d+(?:\.\d+)?(?:\s*,\s*-?\d+(?:\.\d+)?)+\s*")
_VALUE = re.compile(r'\s*("(?:[^"\\]|\\.)*"\s*|[^;]*)(?:;|$)', re.DOTALL)


def parse_calls(text: str, tools: Sequence[ToolSpec]) -> tuple[Call, ...]:
    """Parse every non-empty line as one call. A malformed line does not affect the others.

    Example:
        >>> take = ToolSpec("take", "", {"properties": {"object": {"type": "string"}, "n": {"type": "integer"}}})
        >>> parse_calls("take: mug 1; 2", [take])
        (ToolCall(name='take', arguments={'object': 'mug 1', 'n': 2}, id='0'),)
        >>> parse_calls("take!", [take])[0].reason
        'expected a line like `name: value; value`'
    """
    by_name = {tool.name: tool for tool in tools}
    calls: list[Call] = []
    start = 0
    for line in text.split("\n"):
        if line.strip():
            calls.append(_parse_line(line, start, by_name, len(calls)))
        start += len(line) + 1
    return tuple(calls)


def is_call_line(line: str, tools: Sequence[ToolSpec]) -> bool:
    """Return True if a line begins as a call of one of the tools does: with its name, and a colon or nothing.

    Example:
        >>> look = ToolSpec("look", "", {})
        >>> [is_call_line(line, [look]) for line in ("look", "look: fridge 1", "look around", "go: north")]
        [True, True, False, False]
    """
    names = {tool.name for tool in tools}
    found = _name_in(line, names)
    return found is not None and found[0] in names


def parse_words(text: str, tools: Sequence[ToolSpec]) -> Message:
    """Parse a person's input: lines of calls if the first word is a tool's name, else a message without calls."""
    name = text.strip().partition(":")[0].strip()
    return Message("assistant", text, parse_calls(text, tools) if name in {tool.name for tool in tools} else ())


def format_call(call: ToolCall, tools: Sequence[ToolSpec]) -> str:
    """Format a call as one line that :func:`parse_calls` reads back.

    Example:
        >>> take = ToolSpec("take", "", {"properties": {"object": {"type": "string"}, "n": {"type": "integer"}}})
        >>> format_call(ToolCall("take", {"object": "mug 1", "n": 2}), [take])
        'take: mug 1; 2'
    """
    parameters: JsonSchema = next((tool.parameters for tool in tools if tool.name == call.name), {})
    fields = properties(parameters, parameters)
    pieces: list[str] = []
    is_positional = True
    for name in [*(n for n in fields if n in call.arguments), *(n for n in call.arguments if n not in fields)]:
        is_positional = is_positional and list(fields)[len(pieces) : len(pieces) + 1] == [name]
        text = _format_value(call.arguments[name], fields.get(name, {}), parameters)
        is_alone = is_positional and len(call.arguments) == 1
        if not is_positional or (is_alone and _could_be_arguments(text, fields, parameters)):
            text = f"{name}={text}"
        pieces.append(text)
    return f"{call.name}: {'; '.join(pieces)}" if pieces else call.name


def _parse_line(line: str, start: int, tools: Mapping[str, ToolSpec], index: int) -> Call:
    span = (start, start + len(line))
    split = _name_in(line, tools)
    if split is None:
        return MalformedCall(span, "expected a line like `name: value; value`", line)
    name, rest = split
    spec = tools.get(name)
    root: JsonSchema = spec.parameters if spec else {}
    fields = properties(root, root)
    names = list(fields)
    most = len(names) if spec else _MAX_VALUES
    try:
        given = _arguments_in(rest, fields, root)
    except ValueError as error:
        return MalformedCall(span, str(error), line)
    if given is not None:
        return ToolCall(name, given, str(index))
    rest = _with_semicolons(rest, fields, root)
    arguments: dict[str, object] = {}
    at, num_positional = 0, 0
    while at < len(rest):
        key, at = _key_at(rest, at, names)
        found = _VALUE.match(rest, at)
        if found is None:
            return MalformedCall(span, f"cannot read the value at {rest[at : at + 20]!r}", line)
        raw = found.group(1).strip()
        if key is None:
            if num_positional >= most:
                return MalformedCall(span, f"{name} takes at most {most} values", line)
            key = names[num_positional] if num_positional < len(names) else f"value_{num_positional}"
            num_positional += 1
        if key in arguments:
            return MalformedCall(span, f"{key} is given twice", line)
        try:
            arguments[key] = _parse_value(raw, fields.get(key, {}), root)
        except ValueError:
            kind = described(fields.get(key, {}), root)
            return MalformedCall(span, f"{key} is not a JSON {'value' if kind == 'any' else kind}: {raw!r}", line)
        at = found.end()
    return ToolCall(name, arguments, str(index))


def _with_semicolons(rest: str, fields: Mapping[str, JsonSchema], root: JsonSchema) -> str:
    """Return a line's values; numbers between commas, as coordinates are written, get semicolons."""
    if _NUMBERS.fullmatch(rest) is None:
        return rest
    parts = rest.split(",")
    are_numbers = all(
        types_of(field, root) and set(types_of(field, root)) <= {"integer", "number"}
        for field in list(fields.values())[: len(parts)]
    )
    return rest.replace(",", ";") if are_numbers and 1 < len(parts) <= len(fields) else rest


def _arguments_in(rest: str, fields: Mapping[str, JsonSchema], root: JsonSchema) -> dict[str, Any] | None:
    """Return all arguments if a line gives them as a JSON object, and None if it gives values.

    An object that fits the first parameter is its value, unless it fits as all arguments.

    Raises:
        ValueError: the object is meant as arguments and cannot be read.
    """
    if not rest.startswith("{"):
        return None
    first = next(iter(fields.values()), {"type": "null"})
    takes_object = "object" in types_of(first, root)
    try:
        value = read_json(rest)
        require_writable(value)
    except ValueError as error:
        key = _FIRST_KEY.match(rest)
        if key is not None and key[1] in fields and not takes_object:
            raise ValueError(f"the arguments are no JSON object ({error})") from None
        return None
    assert isinstance(value, dict)
    if value.keys() <= fields.keys() and accepts(value, root):
        return value
    if takes_object and accepts(value, root, first):
        return None
    if not fields or not value or any(key in fields for key in value):
        return value
    if len(fields) > 1 and not takes_object:
        raise ValueError(f"{next(iter(value))!r} is no parameter; they are {', '.join(fields)}")
    return None


def _could_be_arguments(text: str, fields: Mapping[str, JsonSchema], root: JsonSchema) -> bool:
    try:
        return _arguments_in(text, fields, root) is not None
    except ValueError:
        return True


def _parse_value(raw: str, schema: JsonSchema, root: JsonSchema) -> Json:
    """Read a value by its type. Where text is one of several types, what is no JSON of the others is text."""
    kinds = types_of(schema, root)
    value: Json = raw
    if "string" not in kinds or raw.startswith('"'):
        value = read_json(raw)
    elif kinds != {"string"}:
        with suppress(ValueError):
            value = read_json(raw)
        if value != raw and not (type_names(value) & kinds and accepts(value, root, schema)):
            value = raw
    require_writable(value)
    return value


def _name_in(line: str, tools: Collection[str]) -> tuple[str, str] | None:
    """Return the tool's name and the text of the values. Only known tools may have names that are no identifiers."""
    matched = _LINE.match(line)
    if matched is None or matched.group(1) not in tools:
        text = line.strip()
        for name in sorted(tools, key=len, reverse=True):
            rest = text.removeprefix(name).lstrip()
            if text.startswith(name) and rest[:1] in ("", ":"):
                return name, rest[1:].strip()
    return None if matched is None else (matched.group(1), (matched.group(2) or "").strip())


def _key_at(rest: str, at: int, names: Sequence[str]) -> tuple[str | None, int]:
    """Return the parameter that is named there, and where its value begins."""
    found = _KEY.match(rest, at)
    if found and (found.group(1) in names or _IDENTIFIER.fullmatch(found.group(1))):
        return found.group(1), found.end()
    return None, at


def _format_value(value: object, schema: JsonSchema, root: JsonSchema) -> str:
    if isinstance(value, str) and value == value.strip() and value != "" and not re.search(r'^\{|[;=\n"\\]', value):
        with suppress(ValueError):
            if _parse_value(value, schema, root) == value:
                return value
    # a semicolon can only be inside a string, where the escape has the same meaning; bare, it would end the value
    return readable_json(value) if isinstance(value, str) else readable_json(value).replace(";", "\\u003b")
