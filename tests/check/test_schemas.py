"""The structural check of tool schemas."""

from typing import Any, Literal

import pytest

from agentgym.check.contract import schema_problems, undescribed
from agentgym.tool import tool, tool_of


def parameters(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "array"}, "the type of a tool's parameters is 'object', not 'array'"),
        (["object"], "a schema is an object, not ['object']"),
        (
            {"type": "object", "default": float("nan")},
            "not JSON: Out of range float values are not JSON compliant",
        ),
        ({"type": "object", "default": {1, 2}}, "not JSON: Object of type set is not JSON serializable"),
        (parameters(k={"type": "int"}), "properties.k: unknown type 'int'"),
        (parameters(k={"enum": []}), "properties.k: enum is not a list of values"),
        (parameters(k="string"), "properties.k: a schema is an object, not 'string'"),
        (parameters(k={"type": "array", "items": {"type": "str"}}), "properties.k.items: unknown type 'str'"),
        (parameters(k={"anyOf": [{"type": "float"}]}), "properties.k.anyOf.0: unknown type 'float'"),
        (parameters(k={"$ref": "#/$defs/Nowhere"}), "properties.k: $ref '#/$defs/Nowhere' leads nowhere"),
        ({**parameters(), "required": ["n"]}, "required names 'n', which is no property"),
    ],
)
def test_problems_are_named(schema: Any, problem: str) -> None:
    (found,) = schema_problems(schema)
    assert found.startswith(problem)


def test_what_tools_derive_is_sound() -> None:
    @tool
    def search(query: str, k: int = 3, kinds: list[Literal["a", "b"]] | None = None, more: bool = True) -> str:
        """Search.

        Args:
            query: what for.
        """
        return query

    schema = tool_of(search).spec.parameters
    assert list(schema_problems(schema)) == []
    assert undescribed(schema) == ["k", "kinds", "more"]
