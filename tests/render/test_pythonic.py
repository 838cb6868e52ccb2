"""Calls in Python are read as Python reads them, one by one, and garbage costs no more than its length."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.canonical import MAX_DEPTH
from agentgym.render.families import FORMATS
from agentgym.render.formats.python_values import MAX_VALUES, PythonReader, ReadingBudget
from agentgym.render.formats.reading import NotReadableError
from agentgym.types import Call, MalformedCall, ToolCall

leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


def calls(name: str, text: str) -> tuple[Call, ...]:
    return FORMATS[name].parse(text, []).calls


@given(values)
def test_a_value_is_read_as_python_writes_it(value: Any) -> None:
    text = repr(value)
    assert PythonReader(text, ReadingBudget()).value(0) == (value, len(text))


@pytest.mark.parametrize(
    "text",
    ["'''it's'''", '"""a\nb"""', r"'\x41\101\N{BULLET}\u00e9\U0001F600'", r"r'\n'", "'a' \"b\"", "'a\\\nb'", "(1)",
     "(1,)", "()", "[1, # one\n 2,]", "0x1f", "0b11", "1_000", ".5", "1.", "-1e3", "+2", "u'x'", "{'a': (1, [2])}"],
)  # fmt: skip
def test_every_way_to_write_a_value_is_known(text: str) -> None:
    wanted = ast.literal_eval(text)
    wanted = list(wanted) if isinstance(wanted, tuple) else wanted
    wanted = {"a": [1, [2]]} if isinstance(wanted, dict) else wanted
    assert PythonReader(text, ReadingBudget()).value(0) == (wanted, len(text))


@pytest.mark.parametrize(
    "text", ["f'x'", "b'x'", "1j", "x", "f()", "{1}", "[1 2]", "'open", r"'\N{no such name}'", "1__0", "[,]"]
)
def test_what_is_no_value_is_refused(text: str) -> None:
    with pytest.raises(NotReadableError):
        PythonReader(text, ReadingBudget()).value(0)


def test_what_models_write_beside_python_is_read() -> None:
    (call,) = calls("pythonic", "[get-page(from='a\nb', is_new=true, month=07, old=null)]")
    assert call == ToolCall("get-page", {"from": "a\nb", "is_new": True, "month": 7, "old": None}, "0")


@pytest.mark.parametrize("broken", ["f(1", "f(a=x", "f(a='x", "f(a=[1", "f(,", "f(**{}", "f(a=1, g(b=2)"])
def test_calls_beside_a_broken_one_are_kept(broken: str) -> None:
    good = "go(to='a), go(b=1')"
    first, bad, last = calls("lfm2", f"<|tool_call_start|>[{good}, {broken}), {good}]<|tool_call_end|>")
    assert isinstance(first, ToolCall) and isinstance(last, ToolCall) and isinstance(bad, MalformedCall)
    assert first.arguments == last.arguments == {"to": "a), go(b=1"}
    assert bad.text.startswith(broken)


def test_a_call_whose_argument_is_a_call_is_not_run() -> None:
    for text in ("print(f(a=1))", "print(f('it's'))"):
        (call,) = calls("tool_code", f"```tool_code\n{text}\n```")
        assert isinstance(call, MalformedCall)


def test_text_after_a_list_of_calls_is_the_answer() -> None:
    reading = FORMATS["pythonic"].parse("[look()] I look around.", [])
    assert (reading.text, reading.calls) == ("I look around.", (ToolCall("look", {}, "0"),))
    look, rest = calls("lfm2", "<|tool_call_start|>[look()] and more<|tool_call_end|>")
    assert look == ToolCall("look", {}, "0")
    assert isinstance(rest, MalformedCall) and rest.text == "and more"


def test_a_long_text_is_read_and_too_many_values_are_not() -> None:
    (call,) = calls("pythonic", f"[write(text={'x' * 500_000!r})]")
    assert isinstance(call, ToolCall) and len(call.arguments["text"]) == 500_000
    (many,) = calls("pythonic", f"[write(text=[{'1,' * MAX_VALUES}])]")
    assert isinstance(many, MalformedCall) and "values" in many.reason
    (deep,) = calls("pythonic", f"[write(text={'[' * MAX_DEPTH})]")
    assert isinstance(deep, MalformedCall) and "nested deeper" in deep.reason
