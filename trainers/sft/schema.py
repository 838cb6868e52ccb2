"""Comparison of a demonstrated call with the argument schema of its tool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from agentgym.tool import resolved
from agentgym.trainers.sft.conversation import Conversation
from agentgym.types import JsonSchema, ToolCall, ToolSpec

_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": Mapping,
    "null": type(None),
}


def misfits_note(conversations: Iterable[Conversation]) -> str:
    """Return a note with the number of calls that break their tool's schema and the first of them; empty if none do."""
    found = [
        f"{conversation.where}: {call.name}: {why}"
        for conversation in conversations
        for exchange in conversation.exchanges
        for call in exchange.said.calls
        if isinstance(call, ToolCall) and (why := _why(call, conversation.tools))
    ]
    if not found:
        return ""
    calls = "1 call breaks" if len(found) == 1 else f"{len(found)} calls break"
    return f"note: sft.files: {calls} the schema of the tool and will be learnt ({found[0]})"


def _why(call: ToolCall, tools: Iterable[ToolSpec]) -> str:
    return next((misfit(call, tool) for tool in tools if tool.name == call.name), "")


def misfit(call: ToolCall, spec: ToolSpec) -> str:
    """Return why a call's arguments break the schema of its tool; empty if they fit.

    The names and types of arguments are compared, and their ``enum``. Other keywords of JSON schema are not.

    Example:
        >>> schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
        >>> spec = ToolSpec("guess", "", schema)
        >>> [misfit(ToolCall("guess", given), spec) for given in ({"number": 3}, {"number": "three"}, {})]
        ['', "number is 'three', expected integer", 'number is missing']
    """
    root = spec.parameters
    properties: Mapping[str, JsonSchema] = root.get("properties") or {}
    for name in root.get("required") or ():
        if name not in call.arguments:
            return f"{name} is missing"
    for name, value in call.arguments.items():
        if name in properties:
            if not _fits(value, properties[name], root):
                return f"{name} is {str(value)[:60]!r}, expected {_wanted(properties[name], root)}"
        elif root.get("additionalProperties") is False:
            return f"{name} is unknown, expected {', '.join(properties) or 'no arguments'}"
    return ""


def _choices(schema: JsonSchema, root: JsonSchema) -> list[JsonSchema]:
    schema = resolved(schema, root)
    choices = schema.get("anyOf") or schema.get("oneOf")
    return [one for choice in choices for one in _choices(choice, root)] if choices else [schema]


def _fits(value: object, schema: JsonSchema, root: JsonSchema) -> bool:
    return any(_fits_one(value, choice, root) for choice in _choices(schema, root))


def _fits_one(value: object, schema: JsonSchema, root: JsonSchema) -> bool:
    if schema.get("enum") and value not in schema["enum"]:
        return False
    types = _types(schema)
    if types and not any(_is_a(value, name) for name in types):
        return False
    items = schema.get("items")
    return not (isinstance(value, list) and isinstance(items, Mapping)) or all(_fits(one, items, root) for one in value)


def _is_a(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean" or name not in _TYPES
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(name, object))


def _types(schema: JsonSchema) -> tuple[str, ...]:
    found: Any = schema.get("type") or ()
    return (found,) if isinstance(found, str) else tuple(found)


def _wanted(schema: JsonSchema, root: JsonSchema) -> str:
    choices = _choices(schema, root)
    enums = [str(value) for choice in choices for value in choice.get("enum") or ()]
    types = [name for choice in choices for name in _types(choice)]
    return " or ".join(dict.fromkeys(enums or types)) or "another value"
