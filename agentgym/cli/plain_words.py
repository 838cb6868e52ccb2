"""Docstrings and JSON schemas in plain words, for people at a terminal."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

_SECTION = re.compile(r"^(Args|Arguments|Attributes|Example|Examples|Raises|Returns|Yields):$", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")
_LITERAL = re.compile(r"``(.+?)``|`(.+?)`_?", re.DOTALL)


def unmarked(text: str) -> str:
    """Return a text without the marks of reStructuredText.

    Example:
        >>> unmarked("``tools`` of :class:`~agentgym.env.Env`")
        'tools of Env'
    """
    return _LITERAL.sub(lambda found: found[1] or found[2], _ROLE.sub(r"\1", text))


def sections(docstring: str) -> dict[str, str]:
    """Return the sections of a docstring by title; what stands before the first is under an empty title.

    Example:
        >>> sections("Count.\\n\\nArgs:\\n    by: step.")
        {'': 'Count.', 'Args': 'by: step.'}
    """
    parts = _SECTION.split(inspect.cleandoc(docstring))
    titled = zip(["", *parts[1::2]], parts[::2], strict=True)
    return {title: inspect.cleandoc(body.strip("\n")).strip() for title, body in titled}


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text, each as one line without marks."""
    return [unmarked(" ".join(part.split())) for part in re.split(r"\n\s*\n", text) if part.strip()]


def arguments(section: str) -> dict[str, str]:
    """Return what the section ``Args`` says of each argument, as one line without marks.

    Example:
        >>> arguments("by: size of\\n    a step.\\nto: ``last``.")
        {'by': 'size of a step.', 'to': 'last.'}
    """
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", section):
        name, colon, meaning = entry.partition(":")
        if colon:
            found[name.strip()] = unmarked(" ".join(meaning.split()))
    return found


def schema_lines(schema: Mapping[str, Any]) -> list[str]:
    """Return one line for each parameter of a tool: name, what it takes, what it means.

    Example:
        >>> schema_lines({"properties": {"way": {"enum": ["up", "down"], "description": "Where to."}}})
        ['way (up or down, optional): Where to.']
    """
    named = schema.get("$defs", {})
    required = schema.get("required", ())
    lines = []
    for name, part in schema.get("properties", {}).items():
        kind = _kind(part, named) + ("" if name in required else ", optional")
        if part.get("default") is not None:
            kind += f", default {part['default']}"
        meaning = f": {part['description']}" if part.get("description") else ""
        lines.append(f"{name} ({kind}){meaning}")
    return lines


def _kind(part: Mapping[str, Any], named: Mapping[str, Any]) -> str:
    if "$ref" in part:
        return _kind(named.get(part["$ref"].rpartition("/")[2], {}), {})  # one level: definitions may be recursive
    if "enum" in part:
        return " or ".join(map(str, part["enum"]))
    if choices := part.get("anyOf"):
        return " or ".join(_kind(choice, named) for choice in choices)
    if part.get("type") == "array":
        return f"list of {_kind(part.get('items', {}), named)}"
    if properties := part.get("properties"):
        return "object with " + ", ".join(f"{name}: {_kind(inner, named)}" for name, inner in properties.items())
    return f"{part.get('type', 'any value')}"
