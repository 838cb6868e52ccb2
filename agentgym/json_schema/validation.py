"""Validation of arguments against a tool's schema, by ``jsonschema`` and without a network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentgym.json_schema.reading import ANY, changed, children, kept_by_schema, listed, mapping
from agentgym.types import JsonSchema


@dataclass(frozen=True, slots=True)
class Violation:
    """One way in which a value does not fit a schema: the path of the part that is wrong, and a sentence."""

    path: tuple[str | int, ...]
    message: str


def violations(value: object, root: JsonSchema, schema: object = None) -> list[Violation]:
    """Return the ways in which a value violates a schema.

    Patterns that Python's ``re`` cannot compile are left out, since JSON Schema's patterns are those of ECMA-262. A
    schema that cannot be evaluated, because it is malformed, has no violations.

    Args:
        root: schema of the tool.
        schema: part of ``root`` that the value must fit; None for all of it.

    Example:
        >>> violations({"n": "x"}, {"properties": {"n": {"type": "integer"}}})
        [Violation(path=('n',), message="'x' is not of type 'integer'")]
    """
    from referencing.exceptions import Unresolvable

    validator = _validator(root)
    if schema is not None:
        validator = validator.evolve(schema=portable(schema))
    try:
        return [Violation(tuple(error.absolute_path), error.message) for error in validator.iter_errors(value)]
    except (Unresolvable, AttributeError, TypeError, ValueError, RecursionError):
        return []


def accepts(value: object, root: JsonSchema, schema: object = None) -> bool:
    """Return True if a value fits a schema, or a part of it, as :func:`violations` does."""
    return not violations(value, root, schema)


def portable(schema: object, *, has_known_types: bool = True) -> Any:
    """Return a schema without patterns that Python's ``re`` cannot compile, such as ``\\p{L}``, and unknown types.

    Args:
        has_known_types: False to leave unknown types where they are.

    Example:
        >>> portable({"type": "string", "pattern": r"^\\p{L}+$"}), portable({"type": "dict"})
        ({'type': 'string'}, {})
        >>> named = {r"^\\p{Lu}": {"type": "string"}, "^n": {"type": "integer"}}
        >>> portable({"patternProperties": named, "additionalProperties": False})
        {'patternProperties': {'^n': {'type': 'integer'}}}
    """
    if not isinstance(schema, Mapping):
        return schema
    made = changed(schema, partial(portable, has_known_types=has_known_types))
    if "pattern" in made and not compiles(made["pattern"]):
        del made["pattern"]
    kinds = made.get("type", [])
    names = kinds if isinstance(kinds, list | tuple) else [kinds]
    if has_known_types and not all(isinstance(name, str) and name in ANY for name in names):
        del made["type"]
    named = mapping(made.get("patternProperties"))
    if not all(map(compiles, named)):
        made["patternProperties"] = {pattern: part for pattern, part in named.items() if compiles(pattern)}
        for keyword in ("additionalProperties", "unevaluatedProperties"):  # they depend on all patterns
            made.pop(keyword, None)
    return made


def compiles(pattern: object) -> bool:
    """Return True if Python's ``re`` can compile a pattern."""
    try:
        re.compile(str(pattern))
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def schema_error(schema: JsonSchema) -> str:
    """Return the first violation of JSON Schema's own rules with its place, or empty if a schema is valid."""
    import jsonschema

    checked = portable(schema, has_known_types=False)
    try:
        _dialect(checked).check_schema(checked)
    except jsonschema.SchemaError as error:
        return f"{error.message} at {error.json_path}"
    return ""


def dangling_reference(schema: JsonSchema) -> str:
    """Return the first ``$ref`` of a schema that does not resolve within it, or empty. Nothing is fetched."""
    from jsonschema_specifications import REGISTRY
    from referencing import Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT7, DRAFT202012, specification_with

    default = DRAFT7 if _has_tuples(schema) else DRAFT202012
    root = specification_with(str(schema.get("$schema", "")), default=default).create_resource(schema)

    def first(resource: Resource[Any], resolver: Any) -> str:
        ref = resource.contents.get("$ref", "") if isinstance(resource.contents, Mapping) else ""
        try:
            resolver.lookup(ref)
        except Unresolvable:
            return str(ref)
        parts = (first(part, resolver.in_subresource(part)) for part in resource.subresources())
        return next(filter(None, parts), "")

    return first(root, REGISTRY.resolver_with_root(root))


def shape_problem(schema: object, path: str = "") -> str:
    """Return the first part of a schema that no reader could use, or empty: a schema that is no object, for example.

    Unlike :func:`schema_error`, names of types are not checked: data sets write ``dict`` and ``float``.

    Example:
        >>> shape_problem({"properties": {"city": 3}})
        'properties.city is 3, expected a schema'
    """
    return next(_shape_problems(schema, path), "")


def _shape_problems(schema: object, path: str) -> Iterator[str]:
    if isinstance(schema, bool):
        return
    at = f"{path}." if path else ""
    if not isinstance(schema, Mapping):
        yield f"{path or 'the schema'} is {schema!r}, expected a schema"
        return
    for keyword in ("properties", "$defs", "definitions", "patternProperties"):
        if not isinstance(schema.get(keyword, {}), Mapping):
            yield f"{at}{keyword} is {schema[keyword]!r}, expected an object"
    for keyword in ("required", "enum", "anyOf", "oneOf", "allOf"):
        if not isinstance(schema.get(keyword, []), list | tuple):
            yield f"{at}{keyword} is {schema[keyword]!r}, expected a list"
    kinds = schema.get("type", [])
    for name in [*listed(schema.get("required")), *(listed(kinds) if isinstance(kinds, list | tuple) else [kinds])]:
        if not isinstance(name, str):
            yield f"{at}type or required holds {name!r}, expected text"
    for where, child in children(schema):
        yield from _shape_problems(_present(child), f"{at}{where}")


def _present(schema: object) -> object:
    """Return a schema without keywords that are null, as some clients write those that an argument lacks."""
    if not isinstance(schema, Mapping):
        return schema
    return {keyword: value for keyword, value in schema.items() if value is not None}


@kept_by_schema
def _validator(root: JsonSchema) -> Any:
    from jsonschema_specifications import REGISTRY

    schema = portable(root)
    # without a registry of its own, jsonschema would fetch remote references
    return _dialect(schema)(schema, registry=REGISTRY)


def _dialect(schema: JsonSchema) -> Any:
    """Return the validator class that a schema names; without a name, that of its form."""
    import jsonschema

    default = jsonschema.Draft7Validator if _has_tuples(schema) else jsonschema.Draft202012Validator
    return jsonschema.validators.validator_for(schema, default=default)


def _has_tuples(schema: object) -> bool:
    """Return True for a list of ``items``, which draft-07 has and draft 2020-12 refuses."""
    if not isinstance(schema, Mapping):
        return False
    return isinstance(schema.get("items"), list) or any(_has_tuples(child) for _, child in children(schema))
