"""Codecs read every call on its own, never raise, and read back what they write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.render.codecs import CODECS, HermesCodec
from agentgym.types import MalformedCall, ToolCall, ToolSpec

TAKE = ToolSpec(
    "take",
    "Take something.",
    {"type": "object", "properties": {"object": {"type": "string"}, "count": {"type": "integer"}}},
)
calls = st.lists(
    st.builds(
        lambda text, count: ToolCall("take", {"object": text, "count": count}),
        st.text(st.characters(codec="utf-8"), max_size=20),
        st.integers(-5, 5),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("name", ["compact", "hermes"])
@given(calls)
def test_what_is_written_is_read_back(name: str, written: list[ToolCall]) -> None:
    codec = CODECS[name]
    # inside a JSON string the closing tag would end the block for every Hermes reader
    if name == "hermes" and any("</" in str(c.arguments) or "<t" in str(c.arguments) for c in written):
        return
    read = codec.parse(codec.format(written, [TAKE]), [TAKE])
    assert [(c.name, dict(c.arguments)) for c in read if isinstance(c, ToolCall)] == [
        (c.name, dict(c.arguments)) for c in written
    ]


@pytest.mark.parametrize("name", list(CODECS))
@given(st.text(st.sampled_from('<tool_call>/{}":;=\n take 1\x00é'), max_size=80))
def test_nothing_raises(name: str, text: str) -> None:
    for call in CODECS[name].parse(text, [TAKE]):
        assert isinstance(call, ToolCall | MalformedCall)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("{oops", "not JSON"),
        ("[1]", "expected"),
        ('{"arguments": {}}', "expected"),
        ('{"name": "take", "arguments": 3}', "JSON object"),
    ],
)
def test_a_bad_block_does_not_spoil_its_neighbours(block: str, reason: str) -> None:
    good = '<tool_call>{"name": "take", "arguments": {"object": "mug"}}</tool_call>'
    text = f"{good}\n<tool_call>{block}</tool_call>\n{good}"
    first, bad, last = HermesCodec().parse(text, [TAKE])
    assert isinstance(first, ToolCall) and isinstance(last, ToolCall)
    assert isinstance(bad, MalformedCall)
    assert reason in bad.reason
    assert text[slice(*bad.span)] == f"<tool_call>{block}</tool_call>"


def test_a_block_that_was_never_closed_is_still_read() -> None:
    (call,) = HermesCodec().parse('<tool_call>{"name": "take", "arguments": {}}', [TAKE])
    assert call == ToolCall("take", {}, "0")


def test_calls_inside_thinking_are_thoughts() -> None:
    assert HermesCodec().parse('<think><tool_call>{"name": "take"}</tool_call></think>done', [TAKE]) == ()
