"""Schemas of tools: every reader takes every shape, and every call format returns what was written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from agentgym.check.behaviour import _hostile_arguments
from agentgym.check.contract import free_texts, schema_problems, undescribed
from agentgym.cli.describe import schema_lines
from agentgym.endpoint.harnesses.tool_agents import inputs_of
from agentgym.endpoint.wire.openai_chat import read_function
from agentgym.envs.semi_online.env import is_readable
from agentgym.envs.skill_chain.library import Limits, new_skill
from agentgym.errors import ToolError
from agentgym.json_schema.reading import choices, inlined, properties, types_of
from agentgym.json_schema.samples import random_value
from agentgym.json_schema.validation import accepts, dangling_reference, schema_error, shape_problem
from agentgym.render.families import FORMATS
from agentgym.render.tool_texts import example_call, signature
from agentgym.tool import random_call, usage
from agentgym.tools.mcp import McpTool
from agentgym.trainers.sft.conversation import read_conversation
from agentgym.trainers.sft.schema import misfit
from agentgym.trainers.trl.environments import tool_method
from agentgym.types import JsonSchema, Message, ToolCall, ToolSpec

DEFS: Final[dict[str, Any]] = {
    "Size": {"type": "string", "enum": ["1", "2"], "title": "Size"},
    "Point": {
        "type": "object",
        "properties": {
            "x": {"type": "integer"},
            "y": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        },
        "required": ["x"],
    },
    "Node": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
        "required": ["name", "children"],
    },
    "Json": {
        "anyOf": [
            {"type": "string"},
            {"type": "number"},
            {"type": "null"},
            {"type": "array", "items": {"$ref": "#/$defs/Json"}},
            {"type": "object", "additionalProperties": {"$ref": "#/$defs/Json"}},
        ]
    },
    "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "integer"}]},
}
NO_CALLS: Final = {"text"}
"""Formats without calls."""
TEXT, NULL, INTEGER = {"type": "string"}, {"type": "null"}, {"type": "integer"}
AWKWARD: Final = (
    "7", "null", '"null"', "true", "None", "[1]", '{"a": 1}', '"quoted"', "", " spaces ", "a; b=c", "línea\nzwei",
    "'", "\\n", "Asia/Tokyo", "1e5", "-0",
)  # fmt: skip
"""Texts that other types could claim."""

# (where people meet it, schema, values besides random ones)
SHAPES: Final[dict[str, tuple[JsonSchema | bool, tuple[Any, ...]]]] = {
    # pydantic
    "str": (TEXT, AWKWARD),
    "int": (INTEGER, (0, -3, 10**20)),
    "float": ({"type": "number"}, (0.5, -1e-7, 3)),
    "bool": ({"type": "boolean"}, (True, False)),
    "Optional[str]": ({"anyOf": [TEXT, NULL], "default": None}, (None, *AWKWARD)),
    "Optional[int]": ({"anyOf": [INTEGER, NULL]}, (None, 7)),
    "int | str": ({"anyOf": [INTEGER, TEXT]}, (7, *AWKWARD)),
    "list[str] | str": ({"anyOf": [{"type": "array", "items": TEXT}, TEXT]}, (["a", "b"], [], '["a"]', *AWKWARD)),
    "Literal": ({"enum": ["up", "down"], "type": "string"}, ()),
    "Literal[1]": ({"const": 1, "type": "integer"}, ()),
    "Optional[Literal]": ({"anyOf": [{"enum": ["1", "null"], "type": "string"}, NULL]}, ("1", "null", None)),
    "Enum of digits": ({"$ref": "#/$defs/Size"}, ("1", "2")),
    "Enum with a default": ({"$ref": "#/$defs/Size", "default": "1", "description": "The size."}, ("1",)),
    "model": ({"$ref": "#/$defs/Point"}, ({"x": 1, "y": None},)),
    "Optional[model]": ({"anyOf": [{"$ref": "#/$defs/Point"}, NULL]}, (None, {"x": 1})),
    "list[model]": ({"type": "array", "items": {"$ref": "#/$defs/Point"}}, ([], [{"x": 1}, {"x": 2, "y": 0.5}])),
    "recursive model": ({"$ref": "#/$defs/Node"}, ({"name": "7", "children": [{"name": "", "children": []}]},)),
    "JsonValue": ({"$ref": "#/$defs/Json"}, (None, 1, {"a": ["b", None]}, *AWKWARD)),
    "dict[str, int]": (
        {"type": "object", "additionalProperties": INTEGER}, ({}, {"a b": 1}, {"a:b,": 1, 'it"s': 2, "": 3})
    ),
    "tuple[int, str]": (
        {"type": "array", "prefixItems": [INTEGER, TEXT], "minItems": 2, "maxItems": 2, "items": False}, ([1, "7"],)
    ),
    "bounds": ({"type": "integer", "minimum": 20, "exclusiveMaximum": 24}, ()),
    "multiple": ({"type": "number", "multipleOf": 0.25, "minimum": 5}, ()),
    "pattern": ({"type": "string", "pattern": "^[A-Z]{3}-[0-9]+$"}, ()),
    "date": ({"type": "string", "format": "date"}, ("2024-05-17",)),
    "min_length": ({"type": "string", "minLength": 9}, ()),
    "Any": ({"title": "Anything"}, (None, 1, True, [1], {"a": 1}, *AWKWARD)),
    # schemars (Rust), draft-07
    "Option in schemars": ({"type": ["string", "null"]}, (None, *AWKWARD)),
    "schemars' wrapped reference": ({"allOf": [{"$ref": "#/definitions/P"}], "default": {"x": 1}}, ({"x": 1},)),
    "schemars' enum of variants": (
        {"oneOf": [{"type": "string", "enum": ["Stop"]},
                   {"type": "object", "properties": {"Go": TEXT}, "required": ["Go"], "additionalProperties": False}]},
        ("Stop", {"Go": "7"})
    ),
    "schemars' true": (True, (None, 1, [True], *AWKWARD)),
    "draft-07 tuple": ({"type": "array", "items": [INTEGER, TEXT], "additionalItems": False}, ([1, "7"],)),
    # zod, hand-written and others
    "zod's union": ({"oneOf": [{"const": "a"}, {"const": "b"}, NULL]}, ("a", None)),
    "zod's discriminated union": (
        {"anyOf": [
            {"type": "object", "properties": {"k": {"const": "a"}, "n": INTEGER}, "required": ["k", "n"]},
            {"type": "object", "properties": {"k": {"const": "b"}, "t": TEXT}, "required": ["k"]},
        ]}, ({"k": "a", "n": 1}, {"k": "b", "t": "1"})
    ),
    "enum without a type": ({"enum": ["1", "2"]}, ("1", "2")),
    "enum of numbers": ({"enum": [1, 2]}, (1, 2)),
    "enum of both": ({"enum": [1, "1", None, True]}, (1, "1", None, True)),
    "const of text": ({"const": "5"}, ("5",)),
    "nullable of OpenAPI": ({"type": "string", "nullable": True}, AWKWARD),
    "allOf with bounds": ({"allOf": [INTEGER, {"minimum": 3}]}, (3,)),
    "not": ({"not": {"type": "string"}}, (1, None)),
    "ECMA pattern": ({"type": "string", "pattern": r"^\p{L}+$"}, ("Zoë",)),
    "FastMCP's empty object": ({"type": "object", "properties": {}}, ({},)),
    "reference to itself": ({"$ref": "#/$defs/Loop"}, (7,)),
    "reference to nowhere": ({"$ref": "#/$defs/Missing"}, (7,)),
}  # fmt: skip


def tool(shape: JsonSchema | bool) -> ToolSpec:
    """Return a tool with a parameter of the shape, beside one of each plain kind."""
    root = {
        "type": "object",
        "properties": {"v": shape, "note": TEXT},
        "required": ["v"],
        "$defs": DEFS,
        "definitions": {"P": DEFS["Point"]},
    }
    return ToolSpec("put", "Put.", root)


def skill(spec: ToolSpec) -> None:
    """Save two calls as a skill, which may be refused for their arguments, and for nothing else."""
    line = FORMATS["compact"].format([example_call(spec)], [spec])
    try:
        new_skill("twice", [], f"{line}\n{line}", tools=[spec], library=[], limits=Limits())
    except ToolError as error:
        assert "call 1" in str(error)


def row(spec: ToolSpec) -> dict[str, Any]:
    """Return a conversation whose one call leaves the argument out, as tables write it."""
    call = {"id": "1", "type": "function", "function": {"name": "put", "arguments": {"v": None}}}
    said = [{"role": "user", "content": "Put."}, {"role": "assistant", "tool_calls": [call]}]
    return {"messages": [*said, {"role": "tool", "tool_call_id": "1", "content": "ok"}], "tools": [spec.as_function()]}


READERS: Final[dict[str, Callable[[ToolSpec], object]]] = {
    "usage": usage,
    "signature": signature,
    "schema_lines": lambda spec: schema_lines(spec.parameters),
    "schema_problems": lambda spec: list(schema_problems(spec.parameters)),
    "free_texts": lambda spec: free_texts(spec.parameters),
    "undescribed": lambda spec: undescribed(spec.parameters),
    "hostile_arguments": lambda spec: list(_hostile_arguments(spec, np.random.default_rng(0))),
    "types_of": lambda spec: types_of(properties(spec.parameters, spec.parameters)["v"], spec.parameters),
    "choices": lambda spec: choices(properties(spec.parameters, spec.parameters)["v"], spec.parameters),
    "inlined": lambda spec: inlined(spec.parameters, spec.parameters),
    "schema_error": lambda spec: schema_error(spec.parameters),
    "dangling_reference": lambda spec: dangling_reference(spec.parameters),
    "shape_problem": lambda spec: shape_problem(spec.parameters),
    "misfit": lambda spec: misfit(ToolCall("put", {"v": object.__name__}), spec),
    "TRL's method": lambda spec: tool_method(spec, lambda *_: ""),
    "smolagents' inputs": inputs_of,
    "endpoint": lambda spec: read_function({"name": "put", "parameters": spec.parameters}),
    "rows of conversations": lambda spec: read_conversation(row(spec), "row 1"),
    "skills": skill,
    "semi-online": lambda spec: is_readable(Message("assistant", calls=(ToolCall("put"),)), [spec]),
    "random_value": lambda spec: random_value({"$ref": "#/properties/v"}, spec.parameters, np.random.default_rng(0)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_reader_takes_every_shape(shape: str) -> None:
    spec = tool(SHAPES[shape][0])
    for name, read in READERS.items():
        try:
            read(spec)
        except Exception as error:
            raise AssertionError(f"{name} does not read {shape}: {error!r}") from error
    assert usage(spec).startswith("put(v: ") and signature(spec).startswith("put(v: ")


@pytest.mark.parametrize("shape", SHAPES)
def test_every_format_returns_what_was_written(shape: str) -> None:
    schema, values = SHAPES[shape]
    spec = tool(schema)
    rng = np.random.default_rng(0)
    drawn = [random_call(spec, rng, ["mug 1", "x"]) for _ in range(8)]
    calls = [*drawn, example_call(spec), *(ToolCall("put", {"v": value, "note": "7"}) for value in values)]
    has_python_pattern = shape != "ECMA pattern"  # Python cannot check that random texts fit
    for call in calls:
        assert accepts(dict(call.arguments), spec.parameters) or not has_python_pattern, call
        for name, form in FORMATS.items():
            text = form.format([call], [spec])
            if name in NO_CALLS:
                assert not form.parse(text, [spec]).calls
                continue
            reading = form.parse(text, [spec])
            read = reading.calls[0]
            assert len(reading.calls) == 1 and isinstance(read, ToolCall), (name, text, read)
            assert same(dict(read.arguments), dict(call.arguments)), (name, text)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_refusal_of_a_wrong_argument_names_tool_and_usage(shape: str) -> None:
    spec = tool(SHAPES[shape][0])
    mounted = McpTool("put", lambda: None, "Put.", parameters=spec.parameters)
    with pytest.raises(ToolError, match=r"Usage: put\(v: "):
        mounted.arguments(ToolCall("put", {"note": 3}))


def test_the_table_is_as_large_as_its_docs_say() -> None:
    assert (len(SHAPES), len(READERS), len(FORMATS) - len(NO_CALLS)) == (44, 21, 15)


def same(one: Any, other: Any) -> bool:
    """Return True for equal values of equal types; JSON has one kind of number."""
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, str) == isinstance(other, str) and bool(one == other)


NULLABLE, ANYOF = {"type": ["string", "null"]}, {"anyOf": [{"$ref": "#/$defs/Point"}, NULL]}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"$ref": "#/$defs/Size"}, "1", "1"),
        ({"oneOf": [TEXT, {"type": "array"}]}, "123", "123"),
        ({"oneOf": [TEXT, {"type": "array"}]}, '["a"]', ["a"]),
        ({"allOf": [TEXT, {"minLength": 1}]}, "7", "7"),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"enum": [1, 2]}, "2", 2),
        ({"const": 5}, "5", 5),
        (NULLABLE, "null", None),
        (NULLABLE, "Asia/Tokyo", "Asia/Tokyo"),
        (NULLABLE, '"an exact phrase"', '"an exact phrase"'),
        (NULLABLE, '"null"', "null"),
        (ANYOF, '{"x": 1}', {"x": 1}),
        (INTEGER, "2026-01-15", "2026-01-15"),
        ({"type": "boolean"}, "True", True),
        ({"anyOf": [INTEGER, TEXT]}, "true", "true"),
        ({}, "7", 7),
        ({}, "plain words", "plain words"),
        (False, "7", 7),
    ],
)
@pytest.mark.parametrize(
    ("form", "around"),
    [
        ("qwen_xml", "<tool_call>\n<function=put>\n<parameter=v>\n{}\n</parameter>\n</function>\n</tool_call>"),
        ("glm", "<tool_call>put\n<arg_key>v</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"),
    ],
)
def test_the_natural_text_of_a_value_fits_its_schema(
    form: str, around: str, schema: Any, text: str, value: Any
) -> None:
    (call,) = FORMATS[form].parse(around.replace("{}", text), [tool(schema)]).calls
    assert isinstance(call, ToolCall) and same(call.arguments["v"], value)
