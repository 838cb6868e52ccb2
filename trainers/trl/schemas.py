"""Tool specifications as Python methods: the form from which TRL makes a tool schema again.

TRL takes tools as functions; transformers reads their type hints and Google-style docstring
(``transformers.utils.get_json_schema``). What hints cannot say (bounds, patterns, the properties of an object) goes
into the parameter's description as JSON, so that the model still reads it.
"""

from __future__ import annotations

import inspect
import json
import keyword
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union

from agentgym.errors import ConfigError
from agentgym.types import Json, JsonSchema, ToolSpec

RESERVED = frozenset({"reset", "get_reward"})
"""Methods that TRL itself calls; they are no tools to it."""

MAX_DEPTH = 4
"""Definitions written out inside one another; one that names itself would have no end."""

_SCALARS: Mapping[str, object] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}
_SAID_BY_HINT = frozenset({"type", "description", "title", "enum", "const", "anyOf", "items", "$ref"})
_CALL = Callable[[Any, str, dict[str, object]], str]


def tool_method(spec: ToolSpec, call: _CALL) -> Callable[..., str]:
    """A method that TRL exposes as the tool ``spec``; calling it calls ``call(self, name, arguments)``.

    Raises:
        ConfigError: the tool or a parameter has a name that cannot be a method's or a parameter's.

    Example:
        >>> spec = ToolSpec("take", "Take an object.", {"required": ["what"], "properties": {
        ...     "what": {"type": "string", "description": "Its name."}, "num": {"type": "integer", "minimum": 1}}})
        >>> method = tool_method(spec, lambda self, name, arguments: f"{name} {arguments}")
        >>> method.__name__, str(inspect.signature(method))
        ('take', '(self, *, what: str, num: int = None) -> str')
        >>> method(None, what="mug")
        "take {'what': 'mug'}"
        >>> print(inspect.getdoc(method))
        Take an object.
        <BLANKLINE>
        Args:
            what: Its name.
            num: num (JSON schema: {"type": "integer", "minimum": 1})
    """
    _check_name(spec.name, f"tool {spec.name!r}")
    properties = spec.parameters.get("properties", {})
    definitions = spec.parameters.get("$defs", {})
    hints = {name: _hint(schema, definitions) for name, schema in properties.items()}

    def method(self: Any, /, **arguments: object) -> str:
        return call(self, spec.name, arguments)

    method.__name__ = method.__qualname__ = spec.name
    method.__doc__ = _docstring(spec, properties, definitions)
    method.__annotations__ = hints
    method.__signature__ = _signature(spec, hints)  # type: ignore[attr-defined]
    return method


def _check_name(name: str, what: str) -> None:
    if name in RESERVED:
        raise ConfigError(f"{what}: TRL calls {name} itself, so that it would be no tool; rename it")
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ConfigError(f"{what}: TRL's tools are Python methods, and {name!r} cannot be the name of a public one")


def _signature(spec: ToolSpec, hints: Mapping[str, object]) -> inspect.Signature:
    required = spec.parameters.get("required", ())
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    for name, hint in hints.items():
        if not name.isidentifier() or keyword.iskeyword(name) or name == "self":
            raise ConfigError(f"tool {spec.name!r}: TRL's tools are Python methods, and {name!r} cannot be a parameter")
        default = inspect.Parameter.empty if name in required else None
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        )  # by keyword alone, so that one with a default may come before one without
    parameters[0] = parameters[0].replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature(parameters, return_annotation=str)


def _hint(schema: JsonSchema, definitions: Mapping[str, JsonSchema]) -> Any:
    """The type hint that transformers turns into ``schema`` again, or into the nearest it can say."""
    schema = _resolved(schema, definitions)
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if values and all(isinstance(value, str | int | float | None) for value in values):
        return Literal.__getitem__(tuple(values))
    kind = schema.get("type")
    choices: list[JsonSchema] = list(schema.get("anyOf") or schema.get("oneOf") or ())
    if isinstance(kind, list | tuple):
        choices = [{"type": one} for one in kind]
    if choices:
        return Union.__getitem__(tuple(_hint(choice, definitions) for choice in choices))
    if kind == "array":
        return list[_hint(schema["items"], definitions)] if schema.get("items") else list  # type: ignore[misc]
    if kind == "object":
        return dict
    return _SCALARS.get(str(kind), Any)


def _resolved(schema: JsonSchema, definitions: Mapping[str, JsonSchema]) -> JsonSchema:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return {**definitions[name], **schema} if name in definitions else schema


def _docstring(spec: ToolSpec, properties: Mapping[str, JsonSchema], definitions: Mapping[str, JsonSchema]) -> str:
    lines = [_one_line(spec.description) or spec.name]
    if properties:
        described = {name: _describe(name, schema, definitions) for name, schema in properties.items()}
        lines += ["", "Args:", *(f"    {name}: {text}" for name, text in described.items())]
    return "\n".join(lines)


def _describe(name: str, schema: JsonSchema, definitions: Mapping[str, JsonSchema]) -> str:
    text = _one_line(str(schema.get("description", ""))) or name
    if _is_said_by_hint(schema, definitions):
        return text
    inlined = _inlined(
        {key: value for key, value in schema.items() if key not in ("title", "description")}, definitions
    )
    return f"{text} (JSON schema: {json.dumps(inlined)})"


def _is_said_by_hint(schema: JsonSchema, definitions: Mapping[str, JsonSchema]) -> bool:
    schema = _resolved(schema, definitions)
    unsaid = {key for key, value in schema.items() if key not in _SAID_BY_HINT and (key, value) != ("default", None)}
    inner = [*schema.get("anyOf", ()), *([schema["items"]] if schema.get("items") else [])]
    return not unsaid and all(_is_said_by_hint(part, definitions) for part in inner)


def _inlined(schema: Json, definitions: Mapping[str, JsonSchema], depth: int = 0) -> Json:
    """The schema with its definitions written where they are named, so that it can be read alone."""
    if isinstance(schema, list):
        return [_inlined(part, definitions, depth) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema and depth < MAX_DEPTH:
        schema = {key: value for key, value in _resolved(schema, definitions).items() if key != "$ref"}
        depth += 1
    return {k: _inlined(v, definitions, depth) for k, v in schema.items() if not (k == "title" and isinstance(v, str))}


def _one_line(text: str) -> str:
    """Text without what ends a docstring's section, or would be read as a list of choices."""
    flat = re.sub(r"\b(Args|Returns|Raises):", r"\1 -", " ".join(text.split()))
    return re.sub(r"\((choices:.*)\)$", r"[\1]", flat, flags=re.IGNORECASE)
