"""Nulls that a columnar store writes into rows of a struct column, for keys that only other rows have.

``datasets`` and Parquet give every row the keys of all rows: the arguments of one tool, with null, to calls of another,
and the parameters of one tool to another's schema. They stay in every file that is made of such a table, JSON lines
too. A null is a filler where the tool's schema does not have the key, or does not allow null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym.json_schema.reading import MAPS, changed, properties, resolved
from agentgym.json_schema.validation import accepts
from agentgym.types import JsonSchema

_CONSTRAINTS = ("type", "anyOf", "oneOf", "allOf", "enum", "$ref", "properties", "items")
"""Keywords beside which a null ``const`` is a filler."""


class Fillers:
    """A remover of fillers, with their number so far.

    Example:
        >>> fillers = Fillers()
        >>> schema = {"properties": {"number": {"type": "integer"}, "note": {"type": ["string", "null"]}}}
        >>> fillers.left_out({"number": 0, "city": None, "note": None}, schema, schema), fillers.count
        ({'number': 0, 'note': None}, 1)
    """

    def __init__(self) -> None:
        self.count = 0

    def left_out(self, value: Any, schema: object, root: JsonSchema, *, is_text: bool = False) -> Any:
        """Return arguments, or a part of them, without fillers.

        Args:
            schema: the schema of the value.
            root: the tool's schema, in which references are looked up.
            is_text: the arguments were JSON text, into which no store writes; nulls of objects without named
                properties stay.
        """
        if isinstance(value, list):
            items = resolved(schema, root).get("items", {})
            return [self.left_out(one, items, root, is_text=is_text) for one in value]
        if not isinstance(value, Mapping):
            return value
        known = properties(schema, root)
        others = resolved(schema, root).get("additionalProperties", {})
        kept = {}
        for name, held in value.items():
            own = known.get(name, others)
            if held is not None:
                kept[name] = self.left_out(held, own, root, is_text=is_text)
            elif accepts(None, root, own) if name in known else is_text and not known:
                kept[name] = None
            else:
                self.count += 1
        return kept

    def left_out_of_schema(self, schema: Any, root: JsonSchema) -> Any:
        """Return a schema, or a part of ``root``, without keywords and properties that are fillers."""
        if not isinstance(schema, Mapping):
            return schema
        kept: dict[str, Any] = {}
        for keyword, held in schema.items():
            if keyword in MAPS and isinstance(held, Mapping):
                kept[keyword] = {name: part for name, part in held.items() if part is not None}
                self.count += len(held) - len(kept[keyword])
            elif held is not None or _is_meant(keyword, schema, root):
                kept[keyword] = held
            else:
                self.count += 1
        return changed(kept, lambda part: self.left_out_of_schema(part, root))


def _is_meant(keyword: str, schema: JsonSchema, root: JsonSchema) -> bool:
    """Return True if a null keyword says something: a default of null, or null as the only value."""
    rest = {name: held for name, held in schema.items() if held is not None}
    if keyword == "const":
        return not any(name in rest for name in _CONSTRAINTS)
    return keyword == "default" and accepts(None, root, {name: rest[name] for name in rest if name in _CONSTRAINTS[:6]})
