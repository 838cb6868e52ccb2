"""The compact call syntax: what is formatted is read back, and nothing a model writes raises."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.call_syntax import format_call, parse_calls
from agentgym.types import MalformedCall, ToolCall, ToolSpec

PROPERTIES: dict[str, Any] = {
    "text": {"type": "string"},
    "number": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "items": {"type": "array"},
    "data": {"type": "object"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
}
TOOLS = (
    ToolSpec("use", "Use everything.", {"type": "object", "properties": PROPERTIES}),
    ToolSpec("look", "Look.", {"type": "object", "properties": {}}),
    ToolSpec("go_to", "Go.", {"type": "object", "properties": {"place": {"type": "string"}}}),
)

TEXT = st.text(st.characters(codec="utf-8"))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXT,
        "number": st.integers(),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.booleans(),
        "items": st.lists(JSON_VALUES, max_size=3),
        "data": st.dictionaries(TEXT, JSON_VALUES, max_size=3),
        "maybe": st.none() | TEXT,
    },
)
HOSTILE_TEXT = st.text(st.sampled_from('use:look=;"\\ \n\t{}[]1.é\ud800') | st.characters(), max_size=60)


@given(ARGUMENTS)
def test_parse_reads_back_what_format_wrote(arguments: dict[str, Any]) -> None:
    line = format_call(ToolCall("use", arguments), TOOLS)
    assert parse_calls(line, TOOLS) == (ToolCall("use", arguments, "0"),)


@given(st.lists(ARGUMENTS, min_size=1, max_size=4))
def test_several_lines_are_several_calls(many: list[dict[str, Any]]) -> None:
    text = "\n\n".join(format_call(ToolCall("use", arguments), TOOLS) for arguments in many)
    assert parse_calls(text, TOOLS) == tuple(ToolCall("use", args, str(n)) for n, args in enumerate(many))


@given(HOSTILE_TEXT)
def test_arbitrary_text_never_raises_and_spans_cover_their_lines(text: str) -> None:
    calls = parse_calls(text, TOOLS)
    assert len(calls) == sum(bool(line.strip()) for line in text.split("\n"))
    for call in calls:
        if isinstance(call, MalformedCall):
            assert text[slice(*call.span)] == call.text


@given(HOSTILE_TEXT.filter(lambda text: "\n" not in text and text.strip() != ""))
def test_a_bad_line_does_not_spoil_the_others(line: str) -> None:
    first, _, last = parse_calls(f"look\n{line}\ngo_to: shelf 1", TOOLS)
    assert first == ToolCall("look", {}, "0")
    assert last == ToolCall("go_to", {"place": "shelf 1"}, "2")


@pytest.mark.parametrize("name", ["get-time", "files.read", "with space", "ns:look", "ns/x", "größe", "12", "look"])
@pytest.mark.parametrize("key", ["page-size", "$filter", "user id", "größe", "plain"])
def test_names_that_are_no_identifiers_are_read_back(name: str, key: str) -> None:
    parameters = {"properties": {"first": {"type": "string"}, key: {"type": "string"}, "last": {"type": "integer"}}}
    tools = (ToolSpec(name, "", parameters), ToolSpec(f"{name}-long", "", parameters))
    for arguments in ({}, {"first": "a-b"}, {key: "x=1; y"}, {"first": f"{key}=2", "last": 3}, {key: " ", "last": 0}):
        for call in (ToolCall(name, arguments, "0"), ToolCall(f"{name}-long", arguments, "0")):
            assert parse_calls(format_call(call, tools), tools) == (call,)


def test_a_value_with_an_equals_sign_is_a_parameter_only_if_there_is_one_of_that_name() -> None:
    tools = (ToolSpec("go", "", {"properties": {"to": {"type": "string"}, "how-fast": {"type": "string"}}}),)
    assert parse_calls("go: a b=c; how-fast = 3", tools) == (ToolCall("go", {"to": "a b=c", "how-fast": "3"}, "0"),)


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("go_to: shelf 1", {"place": "shelf 1"}),
        ("  go_to :shelf 1  ", {"place": "shelf 1"}),
        ("go_to: place = shelf 1", {"place": "shelf 1"}),
        ('go_to: "a; b = c"', {"place": "a; b = c"}),
        ("go_to: a: b", {"place": "a: b"}),
        ("go_to:", {}),
        ("go_to: room=kitchen", {"room": "kitchen"}),  # for the schema to refuse
        ("fly: away; now", {"value_0": "away", "value_1": "now"}),  # for the environment to refuse
    ],
)
def test_what_people_type(line: str, arguments: dict[str, Any]) -> None:
    (call,) = parse_calls(line, TOOLS)
    assert isinstance(call, ToolCall)
    assert call.arguments == arguments


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("I should look.", "expected a line like `name: value; value`"),
        ("go_to: a; b", "go_to takes at most 1 values"),
        ("go_to: a; place=b", "place is given twice"),
        ("use: number=two", "number is not a JSON integer: 'two'"),
        ('fly: "\\x"', "value_0 is not a JSON value: '\"\\\\x\"'"),
        ('go_to: "\\ud800"', "place is not a JSON string: '\"\\\\ud800\"'"),
    ],
)
def test_reasons(line: str, reason: str) -> None:
    assert parse_calls(line, TOOLS) == (MalformedCall((0, len(line)), reason, line),)


@pytest.mark.parametrize(
    "text",
    ["use: items=" + "[" * 100_000, "use: " + "a " * 50_000 + "!", "use: a" + " " * 100_000 + "b", '"' * 100_000],
    ids=["nested", "words", "spaces", "quotes"],
)
def test_huge_lines_are_read_in_linear_time(text: str) -> None:
    assert len(parse_calls(text, TOOLS)) == 1


def test_formatting_names_parameters_after_a_gap() -> None:
    call = ToolCall("use", {"text": "a", "ratio": 0.5, "other": "x"})
    assert format_call(call, TOOLS) == "use: a; ratio=0.5; other=x"
    assert format_call(ToolCall("look"), TOOLS) == "look"


# ------------------------------------------------------------------------------------- all arguments as a JSON object

EVENT = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
SEARCH = {"text": {"type": "string"}, "limit": {"type": "integer"}, "folder": {"type": ["string", "null"]}}
BY_NAME = (
    ToolSpec("search", "", {"type": "object", "properties": SEARCH, "required": ["text"]}),
    ToolSpec("create_event", "", {"type": "object", "properties": {"event": EVENT}, "required": ["event"]}),
    ToolSpec("put", "", {"type": "object", "properties": {"data": {"type": "object"}}, "required": ["data"]}),
    ToolSpec("say", "", {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}),
    ToolSpec("look", "", {"type": "object", "properties": {}}),
)


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ('search: {"text": "budget; x", "limit": 3}', {"text": "budget; x", "limit": 3}),
        ('search: {"limit": 3}', {"limit": 3}),
        ("search: budget; folder=inbox", {"text": "budget", "folder": "inbox"}),
        ("search: budget; 3; null", {"text": "budget", "limit": 3, "folder": None}),
        ("search: {name}: hi", {"text": "{name}: hi"}),
        ("search: {}", {}),
        ('create_event: {"event": {"title": "x"}}', {"event": {"title": "x"}}),
        ('create_event: {"title": "x"}', {"event": {"title": "x"}}),
        ('create_event: {"event": {"titel": "x"}}', {"event": {"titel": "x"}}),
        ('create_event: {"titel": "x"}', {"event": {"titel": "x"}}),
        ('put: {"data": {"a": 1}}', {"data": {"a": 1}}),
        ('put: {"a": 1}', {"data": {"a": 1}}),
        ("put: {}", {"data": {}}),
        ('say: {"text": "hi"}', {"text": "hi"}),
        ('say: {"a": 1}', {"text": '{"a": 1}'}),
        ("look: {}", {}),
        ('look: {"a": 1}', {"a": 1}),
    ],
)
def test_an_object_of_arguments_is_read_as_such(line: str, arguments: dict[str, Any]) -> None:
    assert parse_calls(line, BY_NAME) == (ToolCall(line.partition(":")[0], arguments, "0"),)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('search: {"txt": "budget", "limt": 3}', "'txt' is no parameter; they are text, limit, folder"),
        ("search: {'text': 'budget'}", "the arguments are no JSON object"),
        ('search: {"text": "budget"}; 3', "the arguments are no JSON object"),
    ],
)
def test_an_object_that_is_no_arguments_never_becomes_the_first_text(line: str, says: str) -> None:
    (call,) = parse_calls(line, BY_NAME)
    assert isinstance(call, MalformedCall) and says in call.reason


@pytest.mark.parametrize(
    "arguments",
    [{"text": "{text: hi}"}, {"text": "{text: hi}", "limit": 3}, {"text": "{"}, {"limit": 3, "folder": "{limit: 3}"}],
)
def test_a_text_that_could_begin_an_object_is_quoted(arguments: dict[str, Any]) -> None:
    call = ToolCall("search", arguments, "0")
    assert parse_calls(format_call(call, BY_NAME), BY_NAME) == (call,)


def test_arguments_that_do_not_fit_are_written_all_the_same() -> None:
    assert format_call(ToolCall("search", {"text": {"a": 1}}), BY_NAME) == 'search: text={"a": 1}'


def test_an_object_that_never_closes_is_read_in_linear_time() -> None:
    (call,) = parse_calls("search: {" + " " * 300_000, BY_NAME)
    assert isinstance(call, ToolCall)


@pytest.mark.parametrize("data", [{}, {"data": 1}, {"data": {"data": {}}}, {"a": "; ="}])
def test_an_object_that_could_be_all_arguments_is_written_with_its_name(data: dict[str, Any]) -> None:
    call = ToolCall("put", {"data": data}, "0")
    assert parse_calls(format_call(call, BY_NAME), BY_NAME) == (call,)
