"""Formats read every call on its own, never raise, take linear time, and read back what they write."""

from __future__ import annotations

import json

import garbage
import mutations
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.canonical import MAX_DEPTH
from agentgym.render.families import FORMATS
from agentgym.render.formats.json_calls import Hermes, Json, LlamaJson, Mistral
from agentgym.render.formats.reading import MAX_CALLS, ToolFormat
from agentgym.types import MalformedCall, ToolCall, ToolSpec

TAKE = ToolSpec(
    "take",
    "Take something.",
    {"type": "object", "properties": {"object": {"type": "string"}, "count": {"type": "integer"}}},
)
CALLING = sorted(set(FORMATS) - {"text"})
ALPHABET = st.characters(codec="utf-8", exclude_characters="<>|[]｜`")
"""Marks inside a value end it for every reader of formats that do not quote."""
calls = st.lists(
    st.builds(
        lambda text, count: ToolCall("take", {"object": text, "count": count}),
        st.text(ALPHABET, min_size=1, max_size=20).map(str.strip),
        st.integers(-5, 5),
    ),
    min_size=1,
    max_size=3,
)


def read(form: ToolFormat, text: str) -> list[tuple[str, dict[str, object]]]:
    return [(c.name, dict(c.arguments)) for c in form.parse(text, [TAKE]).calls if isinstance(c, ToolCall)]


@pytest.mark.parametrize("name", CALLING)
@given(calls)
def test_what_is_written_is_read_back(name: str, written: list[ToolCall]) -> None:
    form = FORMATS[name]
    assert read(form, form.format(written, [TAKE])) == [(c.name, dict(c.arguments)) for c in written]


@pytest.mark.parametrize("name", sorted(FORMATS))
@given(st.data())
def test_nothing_raises(name: str, data: st.DataObject) -> None:
    form = FORMATS[name]
    whole = form.format([ToolCall("take", {"object": "mug", "count": 1})] * 2, [TAKE])
    pieces = [whole[at : at + 7] for at in range(0, len(whole), 5)] + [
        '{"',
        "}",
        "[",
        '"',
        "\\",
        "\n",
        "é",
        "\x00",
        "(",
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=30)))
    for call in form.parse(text, [TAKE]).calls:
        assert isinstance(call, ToolCall | MalformedCall)


@pytest.mark.parametrize("name", CALLING)
def test_a_megabyte_of_half_calls_is_read(name: str) -> None:
    """Texts that make a reader search again and again, which would take hours if its time were quadratic."""
    form = FORMATS[name]
    whole = form.format([ToolCall("take", {"object": "mug", "count": 1})], [TAKE])
    half = whole[: len(whole) * 2 // 3]
    for piece in (half, whole[:12], "[" * 40 + half, '{"name": [1,\n', '{"a":' * 30 + half, "take(object='"):
        reading = form.parse(piece * (1_000_000 // len(piece)), [TAKE])
        assert all(isinstance(call, ToolCall | MalformedCall) for call in reading.calls)
        assert len(reading.text) <= 1_000_000


@pytest.mark.parametrize(
    "name", sorted(set(CALLING) - {"compact", "react", "llama_json", "pythonic", "json", "harmony"})
)
def test_a_bad_call_leaves_its_neighbours(name: str) -> None:
    form = FORMATS[name]
    good = form.format([ToolCall("take", {"object": "mug"})], [TAKE])
    middle = good.replace("take", "", 1)
    found = form.parse("\n".join([good, middle, good]), [TAKE]).calls
    assert [isinstance(call, ToolCall) and call.name == "take" for call in found] in ([True, False, True], [True, True])
    assert sum(isinstance(call, ToolCall) for call in found) == 2


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("{oops", "not JSON"),
        ("3", "expected"),
        ('{"arguments": {}}', "expected"),
        ('{"name": "take", "arguments": 3}', "JSON object"),
        ('{"name": "take", "arguments": {"n": NaN}}', "NaN is not JSON"),
        ('{"name": "take", "arguments": {"n": 1e999}}', "not finite"),
        ('{"name": "take", "arguments": {"n": "\\ud800"}}', "surrogate"),
        ('{"name": "take", "arguments": ' + '{"a": ' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 2), "nested deeper"),
        ('{"name": "take", "arguments": {"n": ' + "9" * 5000 + "}}", "not JSON"),
    ],
)
def test_why_a_call_cannot_be_read(block: str, reason: str) -> None:
    good = '<tool_call>{"name": "take", "arguments": {"object": "mug"}}</tool_call>'
    text = f"{good}\n<tool_call>{block}</tool_call>\n{good}"
    first, bad, last = Hermes().parse(text, [TAKE]).calls
    assert isinstance(first, ToolCall) and isinstance(last, ToolCall)
    assert isinstance(bad, MalformedCall)
    assert reason in bad.reason
    assert text[slice(*bad.span)] == f"<tool_call>{block}</tool_call>"


def test_a_block_that_was_never_closed_is_still_read() -> None:
    (call,) = Hermes().parse('<tool_call>{"name": "take", "arguments": {}}', [TAKE]).calls
    assert call == ToolCall("take", {}, "0")


def test_text_outside_of_calls_is_the_answer() -> None:
    call = json.dumps({"name": "take", "arguments": {"object": "mug"}})
    assert Json().parse(f"I take it.\n```json\n{call}\n```\nDone.", [TAKE]).text == "I take it.\n\nDone."
    assert LlamaJson().parse("No call here: {}", [TAKE]).text == "No call here: {}"


def test_calls_before_a_break_in_a_list_are_kept() -> None:
    one = json.dumps({"name": "take", "arguments": {"object": "mug"}})
    kept, bad = Mistral().parse(f"[TOOL_CALLS][{one}, {{oops", [TAKE]).calls
    assert kept == ToolCall("take", {"object": "mug"}, "0") and isinstance(bad, MalformedCall)


@pytest.mark.parametrize("name", CALLING)
def test_every_shape_of_garbage_is_read(name: str) -> None:
    for _, text in garbage.shapes(name, 3_000):
        mutations.read(name, text)


@pytest.mark.parametrize("seed", [1, 2])
def test_calls_beside_a_mutated_one_are_kept(seed: int) -> None:
    outcomes = mutations.run(3_000, seed)
    assert set(outcomes) == set(CALLING)
    assert all(counts["kept"] >= 50 and counts["read"] == 100 for counts in outcomes.values())


@pytest.mark.parametrize("name", ["llama_json", "mistral", "phi", "json"])
def test_calls_after_a_broken_one_in_a_list_are_kept(name: str) -> None:
    good = ToolCall("take", {"object": "mug"}, "0")
    text = FORMATS[name].format([good, ToolCall("take", {"object": {"name": "x"}, "bad": 1}), good], [TAKE])
    first, bad, last = FORMATS[name].parse(text.replace('"bad": 1', '"bad": oops'), [TAKE]).calls
    assert first == good and isinstance(bad, MalformedCall) and "oops" in bad.text
    assert isinstance(last, ToolCall) and last.arguments == good.arguments


@pytest.mark.parametrize("name", sorted(set(CALLING) - {"compact"}))
def test_too_many_calls_end_in_one_that_is_malformed(name: str) -> None:
    form = FORMATS[name]
    found = form.parse(form.format([ToolCall("take", {"count": 1})] * (MAX_CALLS + 5), [TAKE]), [TAKE]).calls
    if len(found) == MAX_CALLS + 5:  # a list that is read as one JSON value
        assert name in ("mistral", "phi")
        return
    *read_calls, last = found
    assert len(read_calls) == MAX_CALLS and all(isinstance(call, ToolCall) for call in read_calls)
    assert isinstance(last, MalformedCall) and "more than 1,000 calls" in last.reason


@pytest.mark.parametrize("value", ["1e999", "NaN", "-Infinity"])
def test_numbers_that_are_not_finite_are_refused(value: str) -> None:
    (call,) = FORMATS["compact"].parse(f"take: mug; {value}", [TAKE]).calls
    assert isinstance(call, MalformedCall)


QUOTING = sorted(name for name in CALLING if FORMATS[name].marks)


@pytest.mark.parametrize("name", QUOTING)
@given(st.data())
def test_arguments_may_quote_the_marks_of_their_format(name: str, data: st.DataObject) -> None:
    form = FORMATS[name]
    pieces = st.sampled_from([*form.marks, "a", " ", '"', "'", chr(92), "{", "}"])
    quoted = data.draw(st.lists(pieces, min_size=1, max_size=6).map("".join))
    calls = [ToolCall("take", {"object": quoted}), ToolCall("take", {"object": "mug"})]
    assert read(form, form.format(calls, [TAKE])) == [("take", {"object": quoted}), ("take", {"object": "mug"})]
