"""Random values of JSON schemas, checked by ``jsonschema`` before they are returned."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from agentgym.json_schema.patterns import matching
from agentgym.json_schema.reading import TYPES, as_schema, choices, listed, properties, required, resolved, types_of
from agentgym.json_schema.validation import compiles, violations
from agentgym.types import JsonSchema

if TYPE_CHECKING:
    import numpy as np

_TRIES: Final = 30
_SHALLOW: Final = 3
"""Depth from which lists are as short as allowed, and scalar alternatives come first."""
_DEEPEST: Final = 12
_LONGEST: Final = 10_000
_FORMATS: Final[Mapping[str, tuple[str, ...]]] = {
    "date": ("2024-05-17", "2025-12-01"),
    "time": ("09:30:00Z", "17:45:00Z"),
    "date-time": ("2024-05-17T09:30:00Z", "2025-12-01T17:45:00Z"),
    "duration": ("PT5M", "P1D"),
    "uuid": ("3e4666bf-d5e5-4aa7-b8ce-cefe41c7568a", "9b2d5a1c-7f0e-4c3b-8a6d-2e1f0c9b8a7d"),
    "uuid4": ("3e4666bf-d5e5-4aa7-b8ce-cefe41c7568a",),
    "email": ("ada@example.org", "tom@example.com"),
    "uri": ("https://example.org/a", "https://example.com/b"),
    "url": ("https://example.org/a",),
    "hostname": ("example.org", "example.com"),
    "ipv4": ("192.0.2.1", "198.51.100.7"),
    "ipv6": ("2001:db8::1", "2001:db8::2"),
    "ipvanyaddress": ("192.0.2.1",),
    "json-string": ("{}", "[1]"),
    "base64url": ("YQ==", "YWI="),
    "byte": ("YQ==", "YWI="),
    "regex": ("a+", "b"),
    "decimal": ("1.5", "2"),
}
"""Values for the formats of JSON Schema and pydantic; ``jsonschema`` does not check formats, but tools do."""


def random_arguments(root: JsonSchema, rng: np.random.Generator, words: Sequence[str] = ("a",)) -> dict[str, Any]:
    """Return random arguments for all properties of a tool's schema. An argument that does not fit is drawn again.

    If the properties exclude each other, some optional ones are left out. If no draw fits, the last one is returned.

    Args:
        words: texts for strings without an enumeration.

    Example:
        >>> import numpy as np
        >>> schema = {"properties": {"n": {"anyOf": [{"type": "integer", "minimum": 20}, {"const": 7}]}}}
        >>> random_arguments(schema, np.random.default_rng(0))["n"] in (7, *range(20, 31))
        True
    """
    fields, needed = properties(root, root), required(root, root)
    arguments = {name: _draw(part, root, rng, words, 0) for name, part in fields.items()}
    for _ in range(_TRIES):
        found = violations(arguments, root)
        if not found:
            break
        wrong = {one.path[0] for one in found if one.path}
        if len(wrong) == 0:  # the arguments do not fit together
            kept = [name for name in fields if name in needed or rng.integers(2)]
            arguments = {name: _draw(fields[name], root, rng, words, 0) for name in kept}
        for name in wrong & set(arguments):
            if name not in needed and fields[str(name)].get("not") == {}:
                del arguments[str(name)]
            else:
                arguments[str(name)] = _draw(fields[str(name)], root, rng, words, 0)
    return arguments


def random_value(schema: object, root: JsonSchema, rng: np.random.Generator, words: Sequence[str] = ("a",)) -> Any:
    """Return a random value of a part of a tool's schema. If no draw fits the schema, the last one is returned."""
    for _ in range(_TRIES):
        value = _draw(schema, root, rng, words, 0)
        if not violations(value, root, schema):
            break
    return value


def _draw(schema: object, root: JsonSchema, rng: np.random.Generator, words: Sequence[str], depth: int) -> Any:
    found = _merged(resolved(schema, root), root, rng, depth)
    if listed_values := choices(found, root):
        return listed_values[int(rng.integers(len(listed_values)))] if len(listed_values) > 1 else listed_values[0]
    names = types_of(found, root)
    kinds = [name for name in TYPES if name in names and not (name == "integer" and "number" in names)]
    kind = kinds[0] if len(kinds) in (1, len(TYPES) - 1) else _one(kinds, rng, depth)
    match kind:
        case "integer":
            return _integer(found, rng)
        case "number":
            return _number(found, rng)
        case "boolean":
            return bool(rng.integers(2))
        case "array":
            return _items(found, root, rng, words, depth)
        case "object":
            return _members(found, root, rng, words, depth)
        case "null" | None:
            return None
        case _:
            return _text(found, rng, words)


def _one(kinds: Sequence[str], rng: np.random.Generator, depth: int) -> str | None:
    flat = [kind for kind in kinds if kind not in ("array", "object")]
    drawn = flat if flat and depth >= _SHALLOW else kinds
    return drawn[int(rng.integers(len(drawn)))] if drawn else None


def _merged(schema: JsonSchema, root: JsonSchema, rng: np.random.Generator, depth: int) -> JsonSchema:
    """Return a schema without combinators: all parts of ``allOf``, and a random one of the alternatives."""
    for _ in range(_DEEPEST):
        key = next((key for key in ("allOf", "anyOf", "oneOf") if listed(schema.get(key))), "")
        if not key:
            return schema
        parts = [resolved(part, root) for part in schema[key]]
        if key != "allOf":
            flat = [one for one in parts if not types_of(one, root) & {"array", "object"}]
            drawn = flat if flat and depth >= _SHALLOW else parts
            parts = [drawn[int(rng.integers(len(drawn)))]]
        merged = {name: value for name, value in schema.items() if name != key}
        for part in parts:
            merged = _both(merged, part)
        schema = merged
    return schema


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of two schemas together, of bounds the narrower, for a value that must fit both."""
    both = {**one, **other}
    for key in one.keys() & other.keys():
        mine, theirs = one[key], other[key]
        if key in ("properties", "$defs", "definitions"):
            both[key] = {**as_schema(mine), **as_schema(theirs)}
        elif key in ("required", "allOf"):
            both[key] = [*listed(mine), *(item for item in listed(theirs) if item not in listed(mine))]
        elif key.startswith(("min", "exclusiveMin")) and mine is not True:
            both[key] = max(mine, theirs)
        elif key.startswith(("max", "exclusiveMax")) and mine is not True:
            both[key] = min(mine, theirs)
        elif key == "enum":
            both[key] = [value for value in listed(mine) if value in listed(theirs)]
        elif key == "type":
            both[key] = [
                name for name in TYPES if {name} & types_of({"type": mine}, {}) & types_of({"type": theirs}, {})
            ]
    return both


def _bounds(schema: JsonSchema, width: float, least: float) -> tuple[float, float]:
    """Return the lowest and highest number that a schema allows; missing bounds are about ``width`` away."""
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if above is True and low is not None:  # draft-04
        above = low
    if below is True and high is not None:
        below = high
    lows = [low, *([above + least] if isinstance(above, int | float) and not isinstance(above, bool) else [])]
    highs = [high, *([below - least] if isinstance(below, int | float) and not isinstance(below, bool) else [])]
    bottom = max((one for one in lows if one is not None), default=None)
    top = min((one for one in highs if one is not None), default=None)
    if bottom is None:
        bottom = 0 if top is None or top >= 0 else top - width
    if top is None:
        top = width if bottom <= width else bottom + width
    return bottom, top


def _integer(schema: JsonSchema, rng: np.random.Generator) -> int:
    step = schema.get("multipleOf", 1)
    step = int(step) if isinstance(step, int | float) and step >= 1 else 1
    bottom, top = _bounds(schema, 10 * step, 1)
    low, high = math.ceil(bottom / step), math.floor(top / step)
    return int(rng.integers(low, max(low, high) + 1)) * step


def _number(schema: JsonSchema, rng: np.random.Generator) -> float:
    step = schema.get("multipleOf")
    bottom, top = _bounds(schema, 10 * step if step else 1.0, 0)
    if step:
        low, high = math.ceil(bottom / step), math.floor(top / step)
        return float(round(int(rng.integers(low, max(low, high) + 1)) * step, 9))
    return float(rng.uniform(bottom, max(bottom, top)))


def _text(schema: JsonSchema, rng: np.random.Generator, words: Sequence[str]) -> str:
    def word() -> str:
        return words[int(rng.integers(len(words)))]

    text, pattern = word(), schema.get("pattern")
    if isinstance(pattern, str) and compiles(pattern):
        return text if re.search(pattern, text) else matching(pattern, rng)
    if values := _FORMATS.get(str(schema.get("format"))):
        return values[int(rng.integers(len(values)))]
    least, most = schema.get("minLength", 0), schema.get("maxLength", _LONGEST)
    while len(text) < min(least, _LONGEST):
        text = f"{text} {word()}"
    return text[: int(most)]


def _items(
    schema: JsonSchema, root: JsonSchema, rng: np.random.Generator, words: Sequence[str], depth: int
) -> list[Any]:
    first = listed(schema.get("prefixItems"))
    rest = schema.get("items", True)
    if isinstance(rest, list):  # draft-07
        first, rest = rest, schema.get("additionalItems", True)
    least, most = schema.get("minItems", 0), schema.get("maxItems", _LONGEST)
    wanted = least if depth >= _SHALLOW else max(1, least, len(first))
    if rest is False:
        wanted = min(wanted, len(first))
    if depth >= _DEEPEST:
        return []
    items: list[Any] = []
    for number in range(min(int(wanted), int(most), _LONGEST)):
        part = first[number] if number < len(first) else rest
        for _ in range(_TRIES if schema.get("uniqueItems") else 1):
            item = _draw(part, root, rng, words, depth + 1)
            if item not in items:
                break
        items.append(item)
    return items


def _members(
    schema: JsonSchema, root: JsonSchema, rng: np.random.Generator, words: Sequence[str], depth: int
) -> dict[str, Any]:
    fields, needed = properties(schema, root), list(required(schema, root))
    if depth >= _DEEPEST:
        return {}
    least = schema.get("minProperties", 0)
    needed += [name for name in fields if name not in needed][: max(0, least - len(needed))]
    other = schema.get("additionalProperties", True)
    made = {name: _draw(fields.get(name, other), root, rng, words, depth + 1) for name in needed}
    for number in range(min(least, _LONGEST) - len(made)):
        made[f"key_{number}"] = _draw(other, root, rng, words, depth + 1)
    return made
