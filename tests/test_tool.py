"""Tools: the schema from the signature, checked arguments, refusals, and the output cap."""

from enum import StrEnum
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from agentgym.errors import EnvError, ToolDefinitionError, ToolError
from agentgym.tool import (
    CONTROL_VERBS,
    MAX_OUTPUT_BYTES,
    cut_output,
    error_result,
    random_call,
    result_of,
    tool,
    tool_of,
    tools_of,
    unknown_tool,
    usage,
)
from agentgym.types import ToolCall, ToolSpec


class Unit(StrEnum):
    METRE = "m"
    FOOT = "ft"


@tool(timeout_s=2.0, parallel_safe=True)
def search(
    query: str,
    k: Annotated[int, Field(ge=1, le=20)] = 3,
    kind: Literal["web", "news"] = "web",
    unit: Unit = Unit.METRE,
    tags: list[str] | None = None,
) -> str:
    """Search a corpus.

    Several
    lines.

    Args:
        query: what to look for,
            on two lines.
        k (int): how many.

    Returns:
        What was found.
    """
    return f"{query} {k} {kind} {unit.value} {tags}"


SEARCH = tool_of(search)


def arguments(**given_arguments: Any) -> dict[str, Any]:
    return SEARCH.arguments(ToolCall("search", given_arguments))


def test_schema_comes_from_signature_and_docstring() -> None:
    spec = SEARCH.spec
    assert (spec.name, spec.description) == ("search", "Search a corpus. Several lines.")
    assert (spec.timeout_s, spec.is_parallel_safe) == (2.0, True)
    properties = spec.parameters["properties"]
    assert list(properties) == ["query", "k", "kind", "unit", "tags"]
    assert properties["query"] == {"type": "string", "description": "what to look for, on two lines."}
    assert properties["k"] == {"type": "integer", "default": 3, "minimum": 1, "maximum": 20, "description": "how many."}
    assert properties["kind"]["enum"] == ["web", "news"]
    assert spec.parameters["required"] == ["query"]
    assert spec.parameters["additionalProperties"] is False


def test_arguments_are_completed_and_converted() -> None:
    assert arguments(query="x") == {"query": "x", "k": 3, "kind": "web", "unit": Unit.METRE, "tags": None}
    assert arguments(query=5, k="7", unit="ft") == {
        "query": "5",
        "k": 7,
        "kind": "web",
        "unit": Unit.FOOT,
        "tags": None,
    }


@pytest.mark.parametrize(
    ("given_arguments", "says"),
    [
        ({}, "query: Field required"),
        ({"query": "x", "k": 0}, "k: Input should be greater than or equal to 1"),
        ({"query": "x", "k": "many"}, "k: Input should be a valid integer"),
        ({"query": "x", "kind": "books"}, "kind: Input should be 'web' or 'news'"),
        ({"query": "x", "page": 2}, "page: Extra inputs are not permitted"),
        ({"query": ["x"]}, "query: Input should be a valid string"),
    ],
)
def test_refused_arguments_say_what_is_wrong_and_how_it_is_used(given_arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ToolError) as raised:
        arguments(**given_arguments)
    assert raised.value.error_type == "invalid_arguments"
    assert says in str(raised.value)
    assert "Usage: search(query: string, k?: integer" in str(raised.value)


@pytest.mark.parametrize("bad", [{"query": "\ud800"}, {"query": "x", "\ud800": 1}, {"query": "x", "tags": ["\udc00"]}])
def test_half_a_surrogate_pair_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match="half of a surrogate pair") as raised:
        arguments(**bad)
    assert raised.value.error_type == "invalid_arguments"


@given(
    st.dictionaries(
        st.sampled_from(["query", "k", "kind", "unit", "tags", "other"]), st.from_type(type(None)) | st.text()
    )
)
def test_arguments_are_checked_or_refused_but_never_crash(given_arguments: dict[str, Any]) -> None:
    try:
        checked = arguments(**given_arguments)
    except ToolError:
        return
    assert set(checked) == {"query", "k", "kind", "unit", "tags"}


def test_a_call_of_a_tool_of_no_parameters() -> None:
    @tool
    def look() -> str:
        """Look around."""
        return "dark"

    assert tool_of(look).spec.parameters == {"additionalProperties": False, "properties": {}, "type": "object"}
    assert tool_of(look).arguments(ToolCall("look")) == {}
    assert usage(tool_of(look).spec) == "look()"

    class Point(BaseModel):
        x: int

    @tool
    def go(to: Point, unit: Unit, by: list[Point] | None = None) -> None:
        """Go."""

    # as the model reads it in an error, by fields
    assert usage(tool_of(go).spec) == "go(to: {x: integer}, unit: string, by?: [{x: integer}] or null)"


def test_a_marked_function_is_still_that_function() -> None:
    assert search("x", 1) == "x 1 web m None"


def test_tools_of_a_class_in_order_with_overrides_in_place() -> None:
    class Parent:
        @tool
        def one(self) -> str:
            """One."""
            return "1"

        @tool
        def two(self) -> str:
            """Two."""
            return "2"

    class Child(Parent):
        @tool
        def one(self) -> str:
            """Another one."""
            return "I"

        @tool
        async def three(self) -> str:
            """Three."""
            return "3"

    found = tools_of(Child)
    assert list(found) == ["one", "two", "three"]
    assert found["one"].description == "Another one."
    assert [definition.is_async for definition in found.values()] == [False, False, True]


# ------------------------------------------------------------------------------------------- refused definitions


@pytest.mark.parametrize("name", sorted(CONTROL_VERBS))
def test_control_verbs_are_refused(name: str) -> None:
    def verb() -> str:
        """Reset the world."""
        return ""

    verb.__name__ = name
    with pytest.raises(ToolDefinitionError, match="this name is reserved"):
        tool(verb)


def test_definitions_need_a_docstring_and_types() -> None:
    with pytest.raises(ToolDefinitionError, match="no docstring"):

        @tool
        def bare() -> str:
            return ""

    with pytest.raises(ToolDefinitionError, match=r"^tool 'press' of Lever \(\S*test_tool\.py:\d+\) has no docstring"):

        class Lever:
            @tool
            def press(self) -> str:
                return ""

    with pytest.raises(ToolDefinitionError, match="parameter 'x' has no type"):

        @tool
        def untyped(x) -> str:  # type: ignore[no-untyped-def]
            """Do."""
            return ""

    with pytest.raises(ToolDefinitionError, match=r"\*args and \*\*kwargs"):

        @tool
        def many(*words: str) -> str:
            """Do."""
            return ""


# ------------------------------------------------------------------------------------------------------- results


@given(st.text(st.characters()), st.integers(40, 200))
def test_cut_output_is_short_and_can_be_encoded(text: str, max_bytes: int) -> None:
    cut = cut_output(text, max_bytes)
    assert len(cut.encode()) <= max_bytes
    raw = text.encode(errors="replace")
    if len(raw) <= max_bytes:
        assert cut == raw.decode()
    else:
        assert cut.endswith(f"\n[cut: {len(raw)} bytes in all]")


@pytest.mark.parametrize("output", [object(), (part for part in "ab"), lambda: "a", b"bytes", [object()]])
def test_values_without_a_text_are_refused(output: object) -> None:
    with pytest.raises(EnvError, match=r"tool look returned a .*, which has no text for a model"):
        result_of(ToolCall("look"), output)


def test_output_cap_applies_to_results_and_refusals() -> None:
    call = ToolCall("search", {}, "7")
    assert result_of(call, 3).content == "3"
    assert (result_of(call, "x").name, result_of(call, "x").call_id) == ("search", "7")
    assert len(result_of(call, "é" * 20_000).content.encode()) <= MAX_OUTPUT_BYTES
    refusal = error_result(ToolError("no" * 20_000, "invalid_arguments"), "search", "7")
    assert refusal.is_error
    assert refusal.error_type == "invalid_arguments"
    assert len(refusal.content.encode()) <= MAX_OUTPUT_BYTES


def test_unknown_tool_suggests() -> None:
    error = unknown_tool("serch", ["search", "look"])
    assert error.error_type == "unknown_tool"
    assert str(error) == "unknown tool 'serch'. Did you mean search? Tools: search, look"


def test_random_calls_are_accepted() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        call = random_call(SEARCH.spec, rng, ("alpha", "beta"))
        assert call.arguments["query"] in ("alpha", "beta")
    assert random_call(ToolSpec("look", "", {}), rng).arguments == {}


def test_values_with_commas_are_shown_with_semicolons() -> None:
    """A person types a comma where the compact syntax separates values by semicolons."""

    @tool
    def take(thing: str, place: str) -> str:
        """Take a thing."""
        return thing + place

    with pytest.raises(ToolError, match=r"In a typed line ; separates values: take: mug 1; cabinet 1$"):
        tool_of(take).arguments(ToolCall("take", {"thing": "mug 1, cabinet 1"}))
    with pytest.raises(ToolError, match=r"Usage: take\(thing: string, place: string\)$"):
        tool_of(take).arguments(ToolCall("take", {"thing": "mug 1"}))
