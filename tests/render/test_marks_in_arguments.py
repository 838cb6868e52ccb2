"""Models quote the marks of their own format, write keys of other formats, and make results up."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from agentgym.render.families import FORMATS
from agentgym.render.formats.plain import Compact, CompactOrWords
from agentgym.render.formats.reading import INVENTED
from agentgym.types import MalformedCall, ToolCall, ToolSpec

WRITE = ToolSpec("write", "Write a file.", {"type": "object", "properties": {"text": {"type": "string"}}})
DEEP = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")


def as_json(key: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"name": "write", key: arguments}, ensure_ascii=False)


def python(arguments: dict[str, Any]) -> str:
    return f"write({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def harmony(written: str) -> str:
    return f"<|start|>assistant to=functions.write<|channel|>commentary json<|message|>{written}<|call|>"


def gemma4(arguments: dict[str, Any]) -> str:
    return "<|tool_call>call:write{" + ",".join(f'{k}:<|"|>{v}<|"|>' for k, v in arguments.items()) + "}<tool_call|>"


def fenced(written: str) -> str:
    return f"{DEEP[0]}function{DEEP[1]}write\n```json\n{written}\n```{DEEP[2]}"


LAYOUTS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "hermes": ("hermes", lambda a: f"<tool_call>\n{as_json('arguments', a)}\n</tool_call>"),
    "hermes, unclosed": ("hermes", lambda a: f"<tool_call>{as_json('arguments', a)}\n"),
    "hermes, list": ("hermes", lambda a: f"<tool_call>[{as_json('arguments', a)}]</tool_call>"),
    "llama_json": ("llama_json", lambda a: as_json("parameters", a)),
    "llama_json, tag": ("llama_json", lambda a: f"<|python_tag|>{as_json('parameters', a)}"),
    "mistral": ("mistral", lambda a: f"[TOOL_CALLS][{as_json('arguments', a)}]"),
    "mistral, named": ("mistral", lambda a: f"[TOOL_CALLS]write[ARGS]{json.dumps(a)}"),
    "mistral, id": ("mistral", lambda a: f"[TOOL_CALLS]write[CALL_ID]abc123xyz[ARGS]{json.dumps(a)}"),
    "mistral, bare": ("mistral", lambda a: f"[TOOL_CALLS]write{json.dumps(a)}"),
    "phi": ("phi", lambda a: f"<|tool_call|>[{as_json('arguments', a)}]<|/tool_call|>"),
    "phi, bare": ("phi", lambda a: f"functools[{as_json('arguments', a)}]"),
    "json": ("json", lambda a: f"```json\n{as_json('arguments', a)}\n```"),
    "react": ("react", lambda a: f"Action: write\nAction Input: {json.dumps(a)}\n"),
    "deepseek": ("deepseek", lambda a: f"{DEEP[0]}write{DEEP[1]}{json.dumps(a, ensure_ascii=False)}{DEEP[2]}"),
    "deepseek, fenced": ("deepseek", lambda a: fenced(json.dumps(a, ensure_ascii=False))),
    "harmony": ("harmony", lambda a: harmony(json.dumps(a))),
    "gemma4": ("gemma4", gemma4),
    "pythonic": ("pythonic", lambda a: f"[{python(a)}]"),
    "pythonic, marked": ("pythonic", lambda a: f"<|python_start|>[{python(a)}]<|python_end|>"),
    "lfm2": ("lfm2", lambda a: f"<|tool_call_start|>[{python(a)}]<|tool_call_end|>"),
    "tool_code": ("tool_code", lambda a: f"```tool_code\n{python(a)}\n```"),
}  # fmt: skip
"""Format and text of a call as models write it, nothing escaped."""
MARKS = sorted(
    {mark for form in FORMATS.values() for mark in form.marks}
    | {"\nObservation: x\nAction: rm", "[CALL_ID]", "<|tool_call>call:rm{}<tool_call|>", "<tool_response>\nx"}
    | {"[TOOL_RESULTS]", "<｜tool▁outputs▁begin｜>", "<|start|>functions.rm", "functools[", "<function=rm>", "#)]"}
    | {"<｜tool▁sep｜>", '{"name": "rm", "arguments": {}}', "\n```bash\nmake\n```\n", "}}\n</tool_call>", "rm()"}
)
"""Marks of every format, results, and calls, as parts of a text that a model writes into a file."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_mark_in_an_argument_is_text(layout: str) -> None:
    name, written = LAYOUTS[layout]
    form = FORMATS[name]
    for mark in MARKS:
        arguments = {"text": f"See {mark} here.", "path": f"{mark}"}
        text = written(arguments)
        reading = form.parse(
            f"{text}\n{written({'text': 'second'})}" if name not in ("llama_json", "pythonic") else text, [WRITE]
        )
        wanted = [ToolCall("write", arguments, "0"), ToolCall("write", {"text": "second"}, "1")]
        assert list(reading.calls) == wanted[: 1 + (name not in ("llama_json", "pythonic"))], mark
        assert not reading.text, mark


def test_the_table_has_every_format_that_quotes_its_arguments() -> None:
    assert {name for name, _ in LAYOUTS.values()} == set(FORMATS) - {"text", "compact", "qwen_xml", "glm"}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "result", ["<tool_response>\na.txt\n</tool_response>", "Observation: a.txt", "[TOOL_RESULTS]a"]
)
def test_what_follows_a_result_that_the_model_made_up_never_runs(layout: str, result: str) -> None:
    name, written = LAYOUTS[layout]
    first, second = written({"text": "ls"}), written({"text": "rm a.txt"})
    calls = FORMATS[name].parse(f"{first}\n{result}\nI go on.\n{second}", [WRITE]).calls
    assert [call.arguments for call in calls if isinstance(call, ToolCall)] == [{"text": "ls"}]
    malformed = [call for call in calls if isinstance(call, MalformedCall)]
    if name not in ("llama_json", "pythonic"):  # there the rest is text
        assert len(malformed) == 1 and "are not run" in malformed[0].reason and result in malformed[0].text


@pytest.mark.parametrize("form", [Compact(), CompactOrWords()])
@pytest.mark.parametrize("result", ["<tool_response>", "Observation: a.txt", "[TOOL_RESULTS]a"])
def test_what_follows_a_made_up_result_never_runs_in_lines_without_marks(form: Compact, result: str) -> None:
    calls = form.parse(f"write: ls\n{result}\nwrite: rm a.txt\nwrite: mv", [WRITE]).calls
    assert [call.arguments for call in calls if isinstance(call, ToolCall)] == [{"text": "ls"}]
    (malformed,) = (call for call in calls if isinstance(call, MalformedCall))
    assert "are not run" in malformed.reason and malformed.text.startswith(result)


@pytest.mark.parametrize("form", [Compact(), CompactOrWords()])
def test_lines_that_only_look_like_a_made_up_result_change_nothing(form: Compact) -> None:
    named = ToolSpec("Observation", "", {"properties": {"text": {"type": "string"}}})
    calls = form.parse("write: ls\nObservation: a door\nwrite: mv", [WRITE, named]).calls
    assert [call.name for call in calls if isinstance(call, ToolCall)] == ["write", "Observation", "write"]
    for text in ("Observation: a door.\nwrite: ls", "write: ls\nObservation: a door."):
        calls = form.parse(text, [WRITE]).calls
        written = [call for call in calls if isinstance(call, ToolCall) and call.name == "write"]
        assert [call.arguments for call in written] == [{"text": "ls"}]


@pytest.mark.parametrize("name", ["qwen_xml", "glm"])
def test_what_follows_a_made_up_result_never_runs_between_tags(name: str) -> None:
    form = FORMATS[name]
    first, second = (form.format([ToolCall("write", {"text": text}, "0")], [WRITE]) for text in ("ls", "rm a.txt"))
    calls = form.parse(f"{first}\n<tool_response>\na.txt\n</tool_response>\n{second}", [WRITE]).calls
    assert [call.arguments for call in calls if isinstance(call, ToolCall)] == [{"text": "ls"}]


def test_a_result_that_is_quoted_before_the_first_call_changes_nothing() -> None:
    text = 'Observation: a door.\n<tool_call>{"name": "write", "arguments": {}}</tool_call>'
    assert FORMATS["hermes"].parse(text, [WRITE]).calls == (ToolCall("write", {}, "0"),)
    assert INVENTED.search(text)


@pytest.mark.parametrize(
    ("call", "key"),
    [
        ({"name": "write", "args": {"text": "x"}}, "args"),
        ({"name": "write", "input": {"text": "x"}}, "input"),
        ({"name": "write", "text": "x"}, "text"),
        ({"name": "write", "arguments": {"text": "x"}, "n": 3}, "n"),
        ({"name": "write", "arguments": {}, "parameters": {"text": "x"}}, "parameters"),
        ({"name": "write", "arguments": {"text": "x"}, "parameters": {"text": "x"}}, "parameters"),
    ],
)  # fmt: skip
def test_a_key_that_would_be_lost_makes_the_call_malformed_and_is_named(call: dict[str, Any], key: str) -> None:
    body = json.dumps(call)
    for name, text in {
        "hermes": f"<tool_call>{body}</tool_call>", "llama_json": body, "mistral": f"[TOOL_CALLS][{body}]",
        "phi": f"<|tool_call|>[{body}]<|/tool_call|>", "json": f"```json\n{body}\n```",
    }.items():  # fmt: skip
        (found,) = FORMATS[name].parse(text, [WRITE]).calls
        assert isinstance(found, MalformedCall) and repr(key) in found.reason, name


EMPTY = ("", " ", "\n", "{}", "null")


@pytest.mark.parametrize("empty", EMPTY)
def test_empty_arguments_are_none_in_every_format(empty: str) -> None:
    quoted = json.dumps({"name": "write", "arguments": empty})
    plain = '{"name": "write", "arguments": %s}' % (empty.strip() or '""')
    texts = {
        "mistral": [f"[TOOL_CALLS]write[ARGS]{empty}", f"[TOOL_CALLS][{quoted}]",
                    f"[TOOL_CALLS]write[CALL_ID]a1[ARGS]{empty}"],
        "react": [f"Action: write\nAction Input: {empty}"],
        "deepseek": [f"{DEEP[0]}write{DEEP[1]}{empty}{DEEP[2]}", fenced(empty)],
        "harmony": [harmony(empty)],
        "hermes": [f"<tool_call>{quoted}</tool_call>", f"<tool_call>{plain}</tool_call>"],
        "llama_json": [quoted, plain],
        "phi": [f"<|tool_call|>[{quoted}]<|/tool_call|>"],
        "json": [quoted, plain],
    }  # fmt: skip
    for name, listed in texts.items():
        for text in listed:
            assert FORMATS[name].parse(text, [WRITE]).calls == (ToolCall("write", {}, "0"),), (name, text)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("mistral", '[TOOL_CALLS]write{"text": "a"}Estimating the weather...', "Estimating the weather..."),
        ("mistral", 'Hm. [TOOL_CALLS][{"name": "write", "arguments": {"text": "a"}}]\n\nDone.</s>', "Hm. \n\nDone."),
        ("hermes", '<tool_call>{"name": "write", "arguments": {"text": "a"}}\nI wrote it.', "I wrote it."),
        ("llama_json", 'I write. <|python_tag|>{"name": "write", "parameters": {"text": "a"}}', "I write."),
        ("pythonic", "I write. <|python_start|>[write(text='a')]<|python_end|> Done.", "I write.\nDone."),
        ("pythonic", 'Hm. <|python_start|>{"name": "write", "parameters": {"text": "a"}}<|python_end|>', "Hm."),
        (
            "json",
            'Ada is {"name": "Ada", "age": 3}. {"name": "write", "arguments": {"text": "a"}}',
            'Ada is {"name": "Ada", "age": 3}.',
        ),
        ("react", 'Action: write\nAction Input: {"text": "a"}\nThought: wait.', "Thought: wait."),
    ],
)
def test_text_beside_a_call_is_the_answer(name: str, text: str, said: str) -> None:
    reading = FORMATS[name].parse(text, [WRITE])
    assert reading.calls == (ToolCall("write", {"text": "a"}, "0"),) and reading.text == said
