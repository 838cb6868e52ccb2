"""Text descriptions of tools for models whose chat template does not support tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from agentgym.json_schema.reading import choices, described, properties, required, types_of
from agentgym.json_schema.validation import accepts
from agentgym.render.formats.reading import ToolFormat, as_json
from agentgym.types import JsonSchema, ToolCall, ToolSpec

_SIMPLE: Final[Mapping[str, object]] = {
    "string": "...",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}
"""The shortest example of each JSON type."""


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
    root = tool.parameters
    needed = required(root, root)
    arguments = ", ".join(
        f"{key}{'' if key in needed else '?'}: {described(part, root, joint='|', has_values=True)}"
        for key, part in properties(root, root).items()
    )
    return f"{tool.name}({arguments}): {' '.join(tool.description.split())}"


def example_call(tool: ToolSpec) -> ToolCall:
    """Return a call of a tool with a value that fits the schema for each required argument."""
    root = tool.parameters
    fields = properties(root, root)
    names = required(root, root) if "required" in root else tuple(fields)
    return ToolCall(tool.name, {name: _example(fields.get(name, {}), root) for name in names})


def _example(schema: JsonSchema, root: JsonSchema) -> object:
    if listed := choices(schema, root):
        return listed[0]
    kinds = types_of(schema, root)
    simple = next((value for kind, value in _SIMPLE.items() if kind in kinds), "...")
    if accepts(simple, root, schema):
        return simple
    import numpy as np

    from agentgym.json_schema.samples import random_value

    return random_value(schema, root, np.random.default_rng(0), ("...",))
