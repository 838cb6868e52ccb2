"""Conversations from files: what is read, what is refused, and that their ids are those of a rollout."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testkit.family_episodes import DIFFERS, FIRST, NAMES, OPEN, TURNS, UNKNOWN, tokenizer_of
from testkit.tokenizers_for_tests import HERMES, THINKING, trained

from agentgym.engine import SamplingParams
from agentgym.error_places import place_of
from agentgym.errors import CorruptDataError, MissingExtraError, UsageError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import ModelAgent
from agentgym.rollout.context import FULL, ContextConfig
from agentgym.trainers.config.sft import LossRole, SftConfig
from agentgym.trainers.sft.conversation import AssistantExchange, Conversation
from agentgym.trainers.sft.files import read_files
from agentgym.trainers.sft.rows import sft_rows
from agentgym.trainers.sft.schema import misfit, misfits_note
from agentgym.trainers.sft.write import Writer
from agentgym.types import Completion, FinishReason, Message, ToolCall, ToolSpec, Trajectory

ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add a number.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    },
}
OPENS_THINKING = {
    "deepseek_r1_distill",
    "deepseekv3",
    "nemotron_3_5_lightning",
    "nemotron_3_nano",
    "nemotron_3_super",
    "nemotron_3_ultra",
    "qwen3_8",
}
"""Templates whose prompt opens a block of thinking. A demonstration without thinking closes it; the history that these
templates render has no such block."""


def called(number: Any = 1, call_id: str = "a", **more: Any) -> dict[str, Any]:
    arguments = json.dumps({"number": number})
    call = {"id": call_id, "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **more}


USER: dict[str, Any] = {"role": "user", "content": "Count to 2."}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "a", "content": "The count is 1."}
DONE: dict[str, Any] = {"role": "assistant", "content": "Done."}
ROW: dict[str, Any] = {"messages": [USER, called(), RESULT, DONE], "tools": [ADD]}


def written(path: Path, *rows: Any) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def writer(template: str = HERMES, max_context_tokens: int = 4096, context: ContextConfig = FULL) -> Writer:
    return Writer(
        renderer=ChatRenderer(trained(template)),
        context=context,
        max_context_tokens=max_context_tokens,
        max_new_tokens=64,
        max_turns=None,
    )


def trajectory_of(row: dict[str, Any], tmp_path: Path, by: Writer | None = None) -> Trajectory:
    (conversation,) = read_files([written(tmp_path / "one.jsonl", row)])
    demo = asyncio.run((by or writer()).write(conversation))
    assert demo is not None
    return demo


# ----------------------------------------------------------------------------------------------------- what is read


def test_a_conversation_is_read_in_all_its_forms(tmp_path: Path) -> None:
    as_object = called(content=[{"type": "text", "text": "One "}, {"type": "text", "text": "more."}])
    as_object["tool_calls"][0]["function"]["arguments"] = {"number": 1}
    as_object["reasoning_content"] = "It is 0."
    row = {
        "messages": [{"role": "developer", "content": "Be brief."}, USER, as_object, {**RESULT, "name": "add"}, DONE],
        "tools": json.dumps([ADD["function"]]),
    }
    (read,) = read_files([written(tmp_path / "a.jsonl", row)])
    first, second = read.exchanges
    assert read.first == (Message("system", "Be brief."), Message("user", "Count to 2."))
    assert first.said == Message(
        "assistant", "One more.", (ToolCall("add", {"number": 1}, "a"),), thinking="It is 0.", answer="One more."
    )
    assert [(reply.text, reply.result.name) for reply in first.replies if reply.result] == [("The count is 1.", "add")]
    assert (second.said.text, second.replies, read.where) == ("Done.", (), f"{tmp_path / 'a.jsonl'}, line 1")
    assert [tool.name for tool in read.tools] == ["add"]


def test_parquet_holds_the_same_conversations(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    other = {**ADD, "function": {**ADD["function"], "name": "note", "parameters": {"type": "object"}}}
    noted = called()
    noted["tool_calls"][0]["function"] = {"name": "note", "arguments": {"text": "hi"}}
    added = called()
    added["tool_calls"][0]["function"]["arguments"] = {"number": 1}
    rows = [{"messages": [USER, said, RESULT, DONE], "tools": json.dumps([ADD, other])} for said in (added, noted)]
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    from_json = read_files([written(tmp_path / "a.jsonl", *rows)])
    from_parquet = read_files([str(path)])
    assert [one.exchanges for one in from_parquet] == [one.exchanges for one in from_json]
    assert from_parquet[1].where == f"{path}, row 2"


WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"type": ["string", "null"]},
            "at": {"type": "object", "properties": {"hour": {"type": "integer"}}},
        },
    },
}


def of_two_tools(*, has_text_tools: bool) -> list[dict[str, Any]]:
    """Rows of two tools; the first one's argument may honestly be null."""
    rows = []
    for name, arguments, tool in (
        ("add", {"number": 0}, ADD["function"]),
        ("weather", {"city": "Rome", "unit": None, "at": {"hour": 3}}, WEATHER),
    ):
        said = called()
        said["tool_calls"][0]["function"] = {"name": name, "arguments": arguments}
        tools: Any = [{"type": "function", "function": tool}]
        rows.append({"messages": [USER, said, RESULT, DONE], "tools": json.dumps(tools) if has_text_tools else tools})
    return rows


@pytest.mark.parametrize("has_text_tools", [True, False])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_fillers_of_a_table_are_no_data(tmp_path: Path, suffix: str, has_text_tools: bool) -> None:
    """Whatever file a table was written to, its nulls are those of other rows, but for one that the schema allows."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows, path = of_two_tools(has_text_tools=has_text_tools), tmp_path / f"table.{suffix}"
    table = pyarrow.Table.from_pylist(rows)
    if suffix == "parquet":
        parquet.write_table(table, path)
    else:
        written(path, *table.to_pylist())
        assert '"city": null' in path.read_text()
    first, second = read_files([str(path)])
    assert [call.arguments for call in first.exchanges[0].said.calls if isinstance(call, ToolCall)] == [{"number": 0}]
    assert [call.arguments for call in second.exchanges[0].said.calls if isinstance(call, ToolCall)] == [
        {"city": "Rome", "unit": None, "at": {"hour": 3}}
    ]
    plain = read_files([written(tmp_path / "plain.jsonl", *of_two_tools(has_text_tools=True))])
    assert [one.tools for one in (first, second)] == [one.tools for one in plain]
    assert first.num_fillers and second.num_fillers and not any(one.num_fillers for one in plain)


def test_nulls_that_a_schema_allows_stay(tmp_path: Path) -> None:
    """Arguments of JSON text, into which no table writes, keep nulls of objects with any keys, too."""
    schema = {
        "type": "object",
        "properties": {"where": {"type": "object"}, "default": {"type": "integer", "default": None}},
    }
    said = called()
    said["tool_calls"][0]["function"] = {"name": "find", "arguments": '{"where": {"deleted": null}, "default": null}'}
    row = {"messages": [USER, said, RESULT, DONE], "tools": [{"name": "find", "parameters": schema}]}
    (read,) = read_files([written(tmp_path / "a.jsonl", row)])
    assert [call.arguments for call in read.exchanges[0].said.calls if isinstance(call, ToolCall)] == [
        {"where": {"deleted": None}}
    ]
    assert read.tools[0].parameters["properties"] == {"where": {"type": "object"}, "default": {"type": "integer"}}
    assert read.num_fillers == 2


def test_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[parquet\]'"):
        read_files([str(path)])


def test_a_file_that_is_no_parquet_is_said(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    path.write_bytes(b"not a table")
    with pytest.raises(CorruptDataError, match=r"a\.parquet cannot be read as Parquet") as refused:
        read_files([str(path)])
    assert place_of(refused.value.__cause__, or_ours=False) == "", "a place in pyarrow's own sources says nothing"


# -------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "not JSON"),
        ([1], "a list, expected an object with messages"),
        ({"text": "hi"}, "no messages but text, expected a list of messages"),
        ({"messages": None}, "messages is None, expected a list of messages"),
        (3, "a number, expected an object with messages"),
        ({"messages": [USER]}, "no message of the role assistant"),
        ({"messages": [DONE]}, "expected a system or user message before it"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "message 1: unknown role 'robot', expected system,"),
        ({"messages": [USER, called()]}, r"unknown tool 'add', expected one of the row's tools \(none, add"),
        ({"messages": [USER, called(), DONE], "tools": [ADD]}, "expected the result of the call of 'add' first"),
        ({"messages": [USER, RESULT, DONE]}, "a tool message that answers no call"),
        (
            {"messages": [USER, called(), {**RESULT, "tool_call_id": "b"}], "tools": [ADD]},
            "tool_call_id 'b', expected 'a'",
        ),
        (
            {"messages": [USER, called(), {**RESULT, "name": "sub"}], "tools": [ADD]},
            "of the tool 'sub', expected 'add'",
        ),
        ({"messages": [USER, {**DONE, "content": 3}]}, "content is 3, expected text or a list of text parts"),
        ({"messages": [{**USER, "content": [{"type": "image_url"}]}, DONE]}, "expected parts of the type text"),
        ({"messages": [USER, {**DONE, "content": " "}]}, "without text and calls"),
        ({"messages": [USER, {**DONE, "weight": 0}]}, "weight 0, expected 1"),
        ({"messages": [USER, {**DONE, "function_call": {}}]}, "function_call, expected tool_calls"),
        ({"messages": [USER, DONE], "tools": "[{"}, "tools are not JSON"),
        ({"messages": [USER, DONE], "tools": [{"type": "function"}]}, "expected a function schema with a name"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "half a surrogate pair"),
    ],
)
def test_a_bad_row_names_its_file_and_line_and_what_was_expected(tmp_path: Path, row: Any, said: str) -> None:
    path = written(tmp_path / "a.jsonl", ROW, row, ROW)
    with pytest.raises(UsageError, match=rf"a\.jsonl, line 2: .*{said}.* \(1 bad row, 2 good rows in a\.jsonl\)"):
        read_files([path])


SCHEMA: dict[str, Any] = ADD["function"]["parameters"]


def with_schema(**changes: Any) -> dict[str, Any]:
    return {**ROW, "tools": [{"type": "function", "function": {"name": "add", "parameters": {**SCHEMA, **changes}}}]}


def test_nulls_of_tables_in_schemas_are_left_out(tmp_path: Path) -> None:
    number = {**SCHEMA["properties"]["number"], "enum": None, "const": None, "description": None}
    row = with_schema(properties={"number": number, "city": None, "enum": None}, required=["number"], title=None)
    row["messages"] = [USER, called(2), RESULT, DONE]
    said = row["messages"][1]["tool_calls"][0]["function"]
    said["arguments"] = json.dumps({"number": 2, "city": None})
    (read,) = read_files([written(tmp_path / "a.jsonl", row)])
    assert list(read.tools[0].parameters["properties"]) == ["number"] and "null" not in json.dumps(
        read.tools[0].parameters
    )
    (call,) = read.exchanges[0].said.calls
    assert isinstance(call, ToolCall) and call.arguments == {"number": 2}
    assert misfits_note([read]) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"properties": []}, r"properties is \[\], expected an object"),
        ({"properties": {"number": 3}}, "properties.number is 3, expected a schema"),
        ({"required": "number"}, "required is 'number', expected a list"),
        ({"properties": {"number": {"anyOf": {}}}}, r"properties\.number\.anyOf is \{\}, expected a list"),
    ],
)
def test_a_schema_that_is_none_names_its_file_and_line(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=rf"a\.jsonl, line 2: the parameters of the tool add are no .*{said}"):
        read_files([written(tmp_path / "a.jsonl", ROW, with_schema(**changes))])


def test_arguments_that_are_no_object_are_refused(tmp_path: Path) -> None:
    said = called()
    for arguments, why in (("{", "not JSON"), ("[1]", "must be a JSON object")):
        said["tool_calls"][0]["function"]["arguments"] = arguments
        with pytest.raises(UsageError, match=why):
            read_files([written(tmp_path / "a.jsonl", {"messages": [USER, said], "tools": [ADD]})])


def test_calls_that_break_their_tools_schema_are_counted(tmp_path: Path) -> None:
    bad = {**ROW, "messages": [USER, called("three"), RESULT, called(None), RESULT, DONE]}
    path = written(tmp_path / "a.jsonl", ROW, bad)
    said = misfits_note(read_files([path]))
    assert f"2 calls break the schema of the tool and will be learnt ({path}, line 2: add: number is 'three'" in said
    assert misfits_note(read_files([written(tmp_path / "b.jsonl", ROW)])) == ""


CHOICES: dict[str, Any] = {
    "properties": {"at": {"anyOf": [{"$ref": "#/$defs/Side"}, {"type": "null"}]}, "n": {"type": ["number", "string"]}},
    "$defs": {"Side": {"type": "string", "enum": ["left", "right"]}},
}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"at": "left", "n": 2, "more": [1]}, ""),
        ({"at": None, "n": "2"}, ""),
        ({"at": "up"}, "at is 'up', expected left or right or null"),
        ({"n": True}, "n is 'True', expected string or number"),
    ],
)
def test_schemas_with_choices_and_references_are_compared(arguments: dict[str, Any], said: str) -> None:
    assert misfit(ToolCall("go", arguments), ToolSpec("go", "", CHOICES)) == said


def test_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    for path, why in (
        (str(tmp_path / "a.jsonl"), "there is no file"),
        (str(tmp_path), "is a folder; name its files"),
        (str(tmp_path / "a.csv"), r"neither \.jsonl nor \.parquet"),
        (written(tmp_path / "empty.jsonl", ""), "has no rows"),
    ):
        with pytest.raises(UsageError, match=why):
            read_files([path])


# ------------------------------------------------------------------------------------------------------- token ids


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {*UNKNOWN, *DIFFERS, *OPENS_THINKING}])
def test_the_ids_are_the_templates_rendering_of_the_conversation(name: str) -> None:
    """The last segment is what the template writes for the whole conversation, its own marks included."""
    renderer = ChatRenderer(tokenizer_of(name))
    is_one = renderer.template.abilities.calls == "one"
    turns = [
        (
            Message("assistant", said.content, said.calls[: 1 if is_one else None], answer=said.answer),
            replies[: 1 if is_one else None],
        )
        for said, replies in TURNS
    ]
    conversation = Conversation("x", (OPEN,), FIRST, tuple(AssistantExchange(said, replies) for said, replies in turns))
    by = Writer(renderer=renderer, context=FULL, max_context_tokens=10**5, max_new_tokens=64, max_turns=None)
    demo = asyncio.run(by.write(conversation))
    assert demo is not None and not by.lost
    assert [_calls(turn.action) for turn in demo.turns] == [_calls(said) for said, _ in turns]
    history = list(FIRST)
    for said, replies in turns:
        calls = [call for call in said.calls if isinstance(call, ToolCall)]
        is_text = calls and not renderer.template.renders_calls(said)
        history += [Message("assistant", renderer.format.format(calls, [OPEN])) if is_text else said, *replies]
    whole = renderer.template.render(history, [OPEN])
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode(whole, add_special_tokens=False)
    assert str(tokenizer.decode(ids)).startswith(str(tokenizer.decode(list(demo.segments[-1].token_ids))))


def _calls(message: Message) -> list[Any]:
    return [(call.name, dict(call.arguments)) for call in message.calls if isinstance(call, ToolCall)]


class Scripted:
    """An engine that samples what it was told."""

    max_context_tokens = 4096

    def __init__(self, completions: list[Completion]) -> None:
        self._left = completions

    async def generate(self, prompt_ids: Any, sampling: Any, *, session_id: Any = None) -> Completion:
        return self._left.pop(0)

    async def release(self, session_id: str) -> None:
        pass


@pytest.mark.parametrize("context", [FULL, ContextConfig(policy="window", num_turns=1)], ids=["full", "window"])
@pytest.mark.parametrize(("template", "num_segments"), [(HERMES, 1), (THINKING, 2)], ids=["keeps", "breaks"])
def test_a_rollout_of_the_same_conversation_holds_the_same_ids(
    tmp_path: Path, template: str, num_segments: int, context: ContextConfig
) -> None:
    thinks = {**DONE, "content": "One.", "reasoning_content": "Think first."}
    row = {"messages": [USER, thinks, {"role": "user", "content": "And?"}, DONE]}
    by = writer(template, context=context)
    demo = trajectory_of(row, tmp_path, by)
    assert len(demo.segments) == (num_segments if context == FULL else 2)
    engine: Any = Scripted([turn.completion for turn in demo.turns])
    agent = ModelAgent(engine, by.renderer, SamplingParams(max_new_tokens=64), 0, context)

    async def play() -> list[tuple[int, ...]]:
        windows: list[tuple[int, ...]] = []
        agent.begin(demo.observation, ())
        for turn in demo.turns:
            decision = await agent.decide()
            assert decision is not None and decision.turn.action.thinking == turn.action.thinking
            before = () if decision.begins_segment else windows.pop()
            windows.append((*before, *decision.turn.prompt_ids, *decision.turn.completion.token_ids))
            if turn is not demo.turns[-1]:
                agent.observe(turn.replies)
        return windows

    assert asyncio.run(play()) == [segment.token_ids for segment in demo.segments]
    assert demo.turns[0].action.thinking == "Think first."
    assert demo.turns[0].completion.finish_reason is FinishReason.STOP


def test_a_conversation_that_is_too_long_is_not_written(tmp_path: Path) -> None:
    (conversation,) = read_files([written(tmp_path / "a.jsonl", ROW)])
    demo = trajectory_of(ROW, tmp_path)
    (segment,) = demo.segments
    length = len(segment.token_ids)
    assert asyncio.run(writer(max_context_tokens=length).write(conversation)) is not None
    assert asyncio.run(writer(max_context_tokens=length - 1).write(conversation)) is None


# --------------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize(
    ("roles", "learnt"),
    [
        (("assistant",), ['<tool_call>\n{"name": "add", "arguments": {"number": 1}}\n</tool_call><|im_end|>', "Done."]),
        (("user", "tool"), ["Count to 2.", "The count is 1."]),
        (("system",), ["Be brief."]),
    ],
)
def test_loss_roles_weigh_the_contents_of_their_messages(
    tmp_path: Path, roles: tuple[LossRole, ...], learnt: list[str]
) -> None:
    by = writer()
    demo = trajectory_of(
        {**ROW, "messages": [{"role": "system", "content": "Be brief."}, *ROW["messages"]]}, tmp_path, by
    )
    config = SftConfig(loss_roles=roles, observation_weight=0.25)
    (row,) = sft_rows([demo], config, by.renderer)
    assert set(row.over_tokens("loss_weight").tolist()) == {1.0, 0.25}
    tokenizer = trained()
    changes = np.flatnonzero(np.diff(row.over_tokens("loss_weight") == 1.0, prepend=False, append=False)).reshape(-1, 2)
    texts = [str(tokenizer.decode(list(row.token_ids[start:end]))) for start, end in changes]
    assert [text.replace("<|im_end|>", "").strip() for text in texts] == [
        text.replace("<|im_end|>", "").strip() for text in learnt
    ]
    assert row.over_tokens("is_sampled").sum() == sum(len(turn.completion.token_ids) for turn in demo.turns)


def test_a_message_that_the_template_rewrites_cannot_be_a_loss_role(tmp_path: Path) -> None:
    by = writer(
        HERMES.replace("{{ message.content }}\n</tool_response>", "{{ message.content[:14] }}\n</tool_response>")
    )
    demo = trajectory_of(ROW, tmp_path, by)
    with pytest.raises(UsageError, match=r"rewrites the tool message 'The count is 1\.'.*leave the role out"):
        sft_rows([demo], SftConfig(loss_roles=("tool",)), by.renderer)
