"""Values that a format writes without quotes: the tool's schema decides which are text, and which are JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentgym.json_schema.reading import ANY, properties, type_names, types_of
from agentgym.json_schema.validation import accepts
from agentgym.render.formats.reading import NotReadableError, as_json, json_value
from agentgym.types import JsonSchema, ToolSpec

_PYTHON: Final = {"True": True, "False": False, "None": None}


class BareValues:
    """The values of one call's arguments.

    Where text is one of several types, what is JSON of another one is that. A text that would be read so is quoted.

    Example:
        >>> spec = ToolSpec("f", "", {"properties": {"a": {"type": "string"}, "b": {"type": ["string", "null"]}}})
        >>> values = BareValues("f", [spec])
        >>> values.read("a", "7"), values.read("b", "null"), values.read("b", "7"), values.read("c", "7")
        ('7', None, '7', 7)
        >>> values.written("b", None), values.written("b", "null")
        ('null', '"null"')
    """

    def __init__(self, tool: str, tools: Sequence[ToolSpec]) -> None:
        self._root: JsonSchema = next((spec.parameters for spec in tools if spec.name == tool), {})
        self._fields = properties(self._root, self._root)

    def read(self, name: str, text: str) -> object:
        """Return an argument as its schema's type; text that can be none of its types stays text."""
        schema = self._fields.get(name, {})
        kinds = types_of(schema, self._root)
        if kinds == {"string"}:
            return text
        value = _python(text) if "string" not in kinds or kinds == ANY else _json(text)
        if "string" not in kinds:
            return value
        if isinstance(value, str):  # quotes are part of the text, unless the text within needs them
            return value if value != text and self.read(name, value) != value else text
        return value if type_names(value) & kinds and accepts(value, self._root, schema) else text

    def written(self, name: str, value: object) -> str:
        """Return an argument as text that :meth:`read` reads back."""
        if isinstance(value, str) and self.read(name, value) == value:
            return value
        return as_json(value)


def _json(text: str) -> object:
    try:
        return json_value(text)
    except NotReadableError:
        return text


def _python(text: str) -> object:
    """Return a value of JSON, or one of Python's three words for its literals."""
    return _PYTHON.get(text.strip(), _json(text))
