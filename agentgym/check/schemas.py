"""Is this a JSON schema that chat templates and servers can work with?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentgym.types import Json, JsonSchema

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_SUBSCHEMA_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SUBSCHEMA_MAPS = ("properties", "$defs", "patternProperties")
_SUBSCHEMAS = ("items", "additionalProperties", "not")


def schema_problems(parameters: object) -> Iterator[str]:
    """What is wrong with the JSON schema of a tool's parameters.

    Example:
        >>> list(schema_problems({"type": "object", "properties": {"k": {"type": "int"}}, "required": ["n"]}))
        ["required names 'n', which is no property", "properties.k: unknown type 'int'"]
    """
    try:
        json.dumps(parameters, allow_nan=False)
    except (TypeError, ValueError) as error:
        yield f"not JSON: {error}"
        return
    if not isinstance(parameters, Mapping):
        yield f"a schema is an object, not {parameters!r}"
        return
    if parameters.get("type") != "object":
        yield f"the type of a tool's parameters is 'object', not {parameters.get('type')!r}"
    yield from _problems(parameters, "", parameters)


def free_texts(schema: JsonSchema) -> list[str]:
    """Return the parameters of a tool's schema that take any text.

    Example:
        >>> free_texts({"properties": {"door": {"type": "string"}, "key": {"type": "string", "enum": ["a", "b"]}}})
        ['door']
    """
    return [
        name
        for name, part in schema.get("properties", {}).items()
        if isinstance(part, dict) and part.get("type") == "string" and not {"enum", "const", "pattern"} & set(part)
    ]


def undescribed(parameters: JsonSchema) -> list[str]:
    """The parameters without a description."""
    return [name for name, schema in parameters.get("properties", {}).items() if not schema.get("description")]


def _problems(schema: Any, path: str, root: JsonSchema) -> Iterator[str]:
    at = f"{path}: " if path else ""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        yield f"{at}a schema is an object, not {schema!r}"
        return
    types = schema.get("type", [])
    for name in [types] if isinstance(types, str) else types:
        if name not in _TYPES:
            yield f"{at}unknown type {name!r}"
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        yield f"{at}enum is not a list of values"
    if "$ref" in schema and _referred(schema["$ref"], root) is None:
        yield f"{at}$ref {schema['$ref']!r} leads nowhere"
    properties = schema.get("properties", {})
    for name in schema.get("required", []):
        if name not in properties:
            yield f"{at}required names {name!r}, which is no property"
    for where, child in _children(schema):
        yield from _problems(child, f"{path}.{where}" if path else where, root)


def _children(schema: JsonSchema) -> Iterator[tuple[str, Json]]:
    for keyword in _SUBSCHEMA_MAPS:
        for name, child in schema.get(keyword, {}).items():
            yield f"{keyword}.{name}", child
    for keyword in _SUBSCHEMA_LISTS:
        for number, child in enumerate(schema.get(keyword, [])):
            yield f"{keyword}.{number}", child
    for keyword in _SUBSCHEMAS:
        if keyword in schema:
            yield keyword, schema[keyword]


def _referred(reference: str, root: JsonSchema) -> Any:
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found
