"""Readers of JSON Schema that raise no error: references, booleans as schemas, possible types, one-line descriptions.

The schemas come from pydantic, from MCP servers and from agents' requests, so any keyword may be absent or malformed. A
malformed part counts as a schema that allows every value. Keywords are those of draft 2020-12 and of its predecessors
back to draft-07.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from agentgym.types import JsonSchema

Made = TypeVar("Made")

TYPES: Final = ("string", "integer", "number", "boolean", "array", "object", "null")
"""Names of JSON types, in the order in which descriptions list them."""

ANY: Final = frozenset(TYPES)
_MAX_DEPTH: Final = 40
"""Most references and combinators that are followed into each other; recursive schemas have no end."""
_MAX_KEPT: Final = 256
_MOST_NESTED: Final = 3
_MOST_SHOWN: Final = 200
"""Most levels and characters of the fields of an object that a description shows."""
MAPS: Final = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
"""Keywords whose values are schemas by name."""
_LISTS: Final = ("anyOf", "allOf", "oneOf", "prefixItems")
_SINGLES: Final = (
    "items",
    "additionalItems",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
)


def as_schema(value: object) -> JsonSchema:
    """Return a schema as an object: ``true`` allows every value and ``false`` none (JSON Schema 2020-12, 4.3.2).

    Example:
        >>> as_schema(True), as_schema(False), as_schema({"type": "string"})
        ({}, {'not': {}}, {'type': 'string'})
    """
    if isinstance(value, Mapping):
        return value
    return {"not": {}} if value is False else {}


def resolved(schema: object, root: JsonSchema) -> JsonSchema:
    """Return a schema as an object without ``$ref``, which is looked up in the tool's schema ``root``.

    Keywords beside the reference, such as a description, are kept. A reference that leads nowhere allows every value.

    Example:
        >>> resolved({"$ref": "#/$defs/Point"}, {"$defs": {"Point": {"type": "object"}}})
        {'type': 'object'}
        >>> resolved({"$ref": "#/definitions/a~1b", "default": 1}, {"definitions": {"a/b": True}})
        {'default': 1}
    """
    found, beside = as_schema(schema), dict[str, Any]()
    for _ in range(_MAX_DEPTH):
        reference = found.get("$ref")
        if not isinstance(reference, str):
            return {**found, **beside} if beside else found
        beside = {**{key: value for key, value in found.items() if key != "$ref"}, **beside}
        found = as_schema(target(reference, root))
    return beside


def target(reference: str, root: JsonSchema) -> object:
    """Return the schema that a reference such as ``#/$defs/Point`` names; None if there is none. Nothing is fetched."""
    from referencing.exceptions import Unresolvable

    try:
        return _resolver(root).lookup(reference).contents
    except (Unresolvable, AttributeError, TypeError, ValueError):  # the last three in a malformed schema
        return None


def properties(schema: object, root: JsonSchema) -> dict[str, JsonSchema]:
    """Return the properties of an object's schema, also those behind references and combinators.

    Example:
        >>> properties({"$ref": "#/$defs/P"}, {"$defs": {"P": {"allOf": [{"properties": {"x": True}}]}}})
        {'x': {}}
    """
    return _properties(schema, root, 0)


def required(schema: object, root: JsonSchema) -> tuple[str, ...]:
    """Return the names of the properties that an object must have.

    Example:
        >>> required({"anyOf": [{"required": ["a", "b"]}, {"required": ["a"]}]}, {})
        ('a',)
    """
    return tuple(_required(schema, root, 0))


def types_of(schema: object, root: JsonSchema) -> frozenset[str]:
    """Return the JSON types that a value of a schema may have. ``number`` includes ``integer``.

    References, combinators, lists of types, ``const`` and ``enum`` count. The result may contain a type whose values
    are excluded by other keywords.

    Example:
        >>> sorted(types_of({"oneOf": [{"enum": ["1", "2"]}, {"type": "null"}]}, {}))
        ['null', 'string']
    """
    found = _types(schema, root, ())
    return ANY if found is None else found


def type_names(value: object) -> frozenset[str]:
    """Return the JSON types of a value: two for a whole number, which is a number, too."""
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case str():
            return frozenset({"string"})
        case int() | float():
            return frozenset({"integer", "number"} if value == value // 1 else {"number"})
        case Mapping():
            return frozenset({"object"})
        case _:
            return frozenset({"array"})


def choices(schema: object, root: JsonSchema) -> list[Any] | None:
    """Return the values that a schema lists, by ``enum``, ``const`` or alternatives of them; None for other schemas.

    Example:
        >>> choices({"anyOf": [{"enum": ["up", "down"]}, {"type": "null"}]}, {})
        ['up', 'down', None]
    """
    return _choices(schema, root, 0)


def described(schema: object, root: JsonSchema, *, joint: str = " or ", has_values: bool = False) -> str:
    """Return the types of a schema in one line: ``string or null``, ``[integer]``, ``{x: integer, y?: integer}``.

    Long or deep parts are ``array`` or ``object``.

    Args:
        joint: text between alternatives.
        has_values: True to list the values of an enumeration instead of their type.

    Example:
        >>> described({"type": ["null", "string"]}, {}), described({"enum": ["up", 1]}, {}, joint="|", has_values=True)
        ('string or null', 'up|1')
        >>> described({"type": "array", "items": {"properties": {"x": {"type": "integer"}}, "type": "object"}}, {})
        '[{x?: integer}]'
    """
    return _described(schema, root, joint, has_values, 0)


def children(schema: JsonSchema) -> Iterator[tuple[str, object]]:
    """Yield the schemas inside a schema, each with its path, such as ``properties.name``."""
    for keyword in MAPS:
        for name, child in mapping(schema.get(keyword)).items():
            yield f"{keyword}.{name}", child
    for keyword in _LISTS:
        for number, child in enumerate(listed(schema.get(keyword))):
            yield f"{keyword}.{number}", child
    for keyword in _SINGLES:
        if isinstance(schema.get(keyword), list):  # `items` of draft-07
            yield from ((f"{keyword}.{number}", child) for number, child in enumerate(schema[keyword]))
        elif keyword in schema:
            yield keyword, schema[keyword]


def changed(schema: Mapping[str, Any], change: Callable[[object], object]) -> dict[str, Any]:
    """Return a copy of a schema in which ``change`` has replaced each schema directly inside it."""
    made = dict(schema)
    for keyword in MAPS:
        if isinstance(made.get(keyword), Mapping):
            made[keyword] = {name: change(child) for name, child in made[keyword].items()}
    for keyword in (*_LISTS, *_SINGLES):
        if isinstance(made.get(keyword), list):
            made[keyword] = [change(child) for child in made[keyword]]
        elif keyword in made and keyword in _SINGLES:
            made[keyword] = change(made[keyword])
    return made


def inlined(schema: object, root: JsonSchema, path: tuple[str, ...] = ()) -> JsonSchema:
    """Return a schema with its references and definitions written out in place, without the titles of its parts.

    Where a schema contains itself, every value is allowed.

    Args:
        path: the references that led to the schema.
    """
    reference = str(as_schema(schema).get("$ref", ""))
    if reference in path:
        return {}
    inside = (*path, reference) if reference else path
    found = {
        key: value for key, value in resolved(schema, root).items() if key not in ("$defs", "definitions", "title")
    }
    return changed(found, lambda part: inlined(part, root, inside))


def mapping(value: object) -> Mapping[str, Any]:
    """Return a value if it is a JSON object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def listed(value: object) -> list[Any]:
    """Return a value as a list if it is a JSON array, else an empty one."""
    return list(value) if isinstance(value, list | tuple) else []


def kept_by_schema(make: Callable[[JsonSchema], Made]) -> Callable[[JsonSchema], Made]:
    """Return ``make`` with its results kept for each schema object, since a tool's schema is read at every call."""
    kept: dict[int, tuple[JsonSchema, Made]] = {}

    def made_of(schema: JsonSchema) -> Made:
        found = kept.get(id(schema))
        if found is None:
            if len(kept) >= _MAX_KEPT:
                kept.clear()
            found = kept[id(schema)] = (schema, make(schema))  # the schema is held, so that its id stays its own
        return found[1]

    return made_of


# ---------------------------------------------------------------------------------------------------- private


@kept_by_schema
def _resolver(root: JsonSchema) -> Any:
    from jsonschema_specifications import REGISTRY
    from referencing.jsonschema import DRAFT202012, specification_with

    specification = specification_with(str(root.get("$schema", "")), default=DRAFT202012)
    return REGISTRY.resolver_with_root(specification.create_resource(root))


def _properties(schema: object, root: JsonSchema, depth: int) -> dict[str, JsonSchema]:
    found = resolved(schema, root)
    own = {name: as_schema(part) for name, part in mapping(found.get("properties")).items()}
    if depth >= _MAX_DEPTH:
        return own
    for part in listed(found.get("allOf")):
        own = {**_properties(part, root, depth + 1), **own}
    for branch in (*listed(found.get("anyOf")), *listed(found.get("oneOf"))):
        for name, part in _properties(branch, root, depth + 1).items():
            other = own.get(name, part)
            own[name] = part if other == part else {"anyOf": [*other.get("anyOf", [other]), part]}
    return own


def _required(schema: object, root: JsonSchema, depth: int) -> list[str]:
    found = resolved(schema, root)
    names = [name for name in listed(found.get("required")) if isinstance(name, str)]
    if depth >= _MAX_DEPTH:
        return names
    for part in listed(found.get("allOf")):
        names += _required(part, root, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        if branches := [_required(branch, root, depth + 1) for branch in listed(found.get(keyword))]:
            names += [name for name in branches[0] if all(name in branch for branch in branches)]
    return list(dict.fromkeys(names))


def _types(schema: object, root: JsonSchema, path: tuple[str, ...]) -> frozenset[str] | None:
    """Return the types of a schema; None if it refers to itself, so that it neither adds nor excludes a type."""
    found = as_schema(schema)
    if len(path) > _MAX_DEPTH:
        return None
    parts: list[frozenset[str] | None] = [_declared(found)]
    reference = found.get("$ref")
    if isinstance(reference, str):
        parts.append(
            None if reference in path else _types(as_schema(target(reference, root)), root, (*path, reference))
        )
    parts += [_types(part, root, (*path, "")) for part in listed(found.get("allOf"))]
    for keyword in ("anyOf", "oneOf"):
        if branches := listed(found.get(keyword)):
            known = [names for one in branches if (names := _types(one, root, (*path, ""))) is not None]
            parts.append(frozenset().union(*known) if known else None)
    if "not" in found:
        parts.append(_excluded(found["not"]))
    known_parts = [names for names in parts if names is not None]
    if reference is not None and len(known_parts) == 1 and parts[1] is None and known_parts[0] == ANY:
        return None
    return ANY.intersection(*known_parts)


def _declared(schema: JsonSchema) -> frozenset[str]:
    named = schema.get("type")
    names = [named] if isinstance(named, str) else listed(named)
    found = ANY
    if names and all(isinstance(name, str) and name in ANY for name in names):
        found = frozenset({*names, "integer"} if "number" in names else names)
    if "const" in schema:
        found &= type_names(schema["const"])
    if values := listed(schema.get("enum")):
        found &= frozenset().union(*map(type_names, values))
    return found


def _excluded(schema: object) -> frozenset[str]:
    """Return the types that ``not`` leaves."""
    found = as_schema(schema)
    if not found:
        return frozenset()
    return ANY - _declared(found) if set(found) == {"type"} else ANY


def _described(schema: object, root: JsonSchema, joint: str, has_values: bool, depth: int) -> str:
    if has_values and (values := choices(schema, root)):
        return joint.join(one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in values)
    names = types_of(schema, root)
    if names == ANY:
        return "any"
    hidden = {"integer"} if "number" in names else set()
    texts: list[str] = []
    for name in TYPES:
        if name in names and name not in hidden:
            texts += _shapes(name, schema, root, partial(_described, joint=joint, has_values=has_values), depth)
    return joint.join(dict.fromkeys(texts)) or "nothing"


def _shapes(name: str, schema: object, root: JsonSchema, describe: Callable[..., str], depth: int) -> list[str]:
    """Return the forms that a schema gives to values of a type: the type's name, items or fields."""
    found = resolved(schema, root)
    if name not in ("array", "object") or depth >= _MOST_NESTED:
        return [name]
    if branches := listed(found.get("anyOf")) or listed(found.get("oneOf")):
        able = [one for one in branches if name in types_of(one, root)]
        return [text for one in able for text in _shapes(name, one, root, describe, depth + 1)]
    if name == "array":
        items = found.get("items")
        text = describe(items, root, depth=depth + 1) if isinstance(items, Mapping) else "any"
        text = name if text == "any" else f"[{text}]"
    else:
        needed = required(found, root)
        fields = (
            f"{key}{'' if key in needed else '?'}: {describe(part, root, depth=depth + 1)}"
            for key, part in properties(found, root).items()
        )
        text = f"{{{', '.join(fields)}}}"
    return [text if 2 < len(text) <= _MOST_SHOWN else name]


def _choices(schema: object, root: JsonSchema, depth: int) -> list[Any] | None:
    found = resolved(schema, root)
    if "const" in found:
        return [found["const"]]
    if values := listed(found.get("enum")):
        return values
    if found.get("type") == "null":
        return [None]
    branches = listed(found.get("anyOf")) or listed(found.get("oneOf"))
    if not branches or depth >= _MAX_DEPTH:
        return None
    parts = [_choices(branch, root, depth + 1) for branch in branches]
    if any(part is None for part in parts):
        return None
    return [value for part in parts for value in part or ()]
