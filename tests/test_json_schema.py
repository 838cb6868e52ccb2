"""Schemas of tools: every reader takes every shape, and random calls fit."""

from typing import Any

import numpy as np
import pytest

from agentgym.json_schema.validation import accepts
from agentgym.render.families import FORMATS
from agentgym.render.tool_texts import example_call, signature
from agentgym.tool import random_call, usage
from agentgym.types import ToolCall, ToolSpec

NODE: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
    "required": ["name", "children"],
}
SHAPES: list[Any] = [
    True,
    {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    {"oneOf": [{"type": "integer"}, {"type": "null"}]},
    {"type": ["string", "null"]},
    {"enum": [1, 2]},
    {"const": 5},
    {"type": "integer", "minimum": 20},
    {"type": "integer", "exclusiveMinimum": 0, "multipleOf": 7},
    {"type": "number", "minimum": 5},
    {"type": "string", "minLength": 9},
    {"type": "string", "pattern": "^[A-Z]{3}-[0-9]+$"},
    {"type": "array", "items": {"type": "string"}, "minItems": 3},
    {"$ref": "#/$defs/Node"},
    {"$ref": "#/definitions/P"},
    {"allOf": [{"type": "integer"}, {"minimum": 3}]},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_reader_takes_every_shape(shape: Any) -> None:
    root = {
        "type": "object",
        "properties": {"v": shape},
        "required": ["v"],
        "$defs": {"Node": NODE},
        "definitions": {"P": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
    }
    spec = ToolSpec("put", "Put.", root)
    assert usage(spec).startswith("put(v: ") and signature(spec).startswith("put(v: ")
    assert accepts(dict(example_call(spec).arguments), root)
    rng = np.random.default_rng(0)
    for _ in range(20):
        call = random_call(spec, rng, ["mug 1", "x"])
        assert accepts(dict(call.arguments), root), call
        (read,) = FORMATS["compact"].parse(FORMATS["compact"].format([call], [spec]), [spec]).calls
        assert isinstance(read, ToolCall) and read.arguments == call.arguments
