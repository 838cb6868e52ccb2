"""Text descriptions of tools for models whose chat template does not support tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentgym.render.formats.reading import ToolFormat, as_json
from agentgym.types import ToolCall, ToolSpec


def tools_text(form: ToolFormat, tools: Sequence[ToolSpec], style: Literal["schema", "compact"]) -> str:
    """Return a paragraph that describes tools and shows an example call in the tool-call format.

    ``schema`` gives each tool's JSON schema. ``compact`` gives one line per tool, which is three to six times shorter.
    """
    described = [signature(tool) for tool in tools] if style == "compact" else [as_json(t.as_function()) for t in tools]
    listed = "\n".join(described)
    example = form.format([example_call(tools[0])], tools)
    how = f"To call a tool, write:\n{example}" if example else "Answer in words; tools cannot be called."
    return f"# Tools\n\nYou may call these tools:\n{listed}\n\n{how}"


def result_text(text: str) -> str:
    """Return a tool's result as text of a user message, for models without the role ``tool``."""
    return f"<tool_response>\n{text}\n</tool_response>"


def signature(tool: ToolSpec) -> str:
    """Return a tool as one line; ``?`` marks optional arguments.

    Example:
        >>> schema = {"properties": {"box": {"type": "integer"}, "why": {"type": "string"}}, "required": ["box"]}
        >>> signature(ToolSpec("open", "Open a box.", schema))
        'open(box: integer, why?: string): Open a box.'
    """
    required = set(tool.parameters.get("required", ()))
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    arguments = ", ".join(f"{key}{'' if key in required else '?'}: {_kind(value)}" for key, value in properties.items())
    return f"{tool.name}({arguments}): {' '.join(tool.description.split())}"


def example_call(tool: ToolSpec) -> ToolCall:
    """Return a call of a tool with a value of the right type for each required argument."""
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", list(properties))
    return ToolCall(tool.name, {key: _example(properties.get(key, {})) for key in required})


def _kind(schema: Mapping[str, Any] | bool) -> str:
    if isinstance(schema, bool):
        return "any"
    if "enum" in schema:
        return "|".join(map(str, schema["enum"]))
    kind = schema.get("type", "any")
    return "|".join(kind) if isinstance(kind, list) else str(kind)


def _example(schema: Mapping[str, Any] | bool) -> object:
    if isinstance(schema, bool):
        return "..."
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    return {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}.get(str(kind), "...")
