"""Invalid requests get status 400 and one line in the form of their API, never 500."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from testkit.endpoint_clients import served

from agentgym.canonical import MAX_DEPTH
from agentgym.endpoint.session import EpisodeSession
from agentgym.endpoint.wire import anthropic, gemini, openai_chat, openai_responses
from agentgym.types import ToolCall

ASKED: Any = {"role": "user", "content": "Where is the milk?"}
CHAT: Any = {"messages": [ASKED]}


def post(path: str, body: Any) -> tuple[int, str]:
    """Return status and text of the answer to one request, written with ASCII characters as JSON."""

    async def use(url: str, session: EpisodeSession) -> tuple[int, str]:
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.post(f"{url}/s/abc/v1/{path}", content=json.dumps(body))
            return answer.status_code, answer.text

    found: tuple[int, str] = served(use, "Hello.")[0]
    return found


def with_schema(**schema: Any) -> Any:
    return {**CHAT, "tools": [{"type": "function", "function": {"name": "look", "parameters": schema}}]}


def with_arguments(text: str) -> Any:
    call = {"id": "A", "type": "function", "function": {"name": "look", "arguments": text}}
    reply = {"role": "tool", "tool_call_id": "A", "content": "Milk."}
    return {"messages": [ASKED, {"role": "assistant", "tool_calls": [call]}, reply]}


def nested(depth: int) -> str:
    return '{"at": ' * depth + "1" + "}" * depth


def test_nulls_of_keywords_that_an_argument_lacks_are_no_fault() -> None:
    lacking: dict[str, Any] = {
        "type": "array",
        "items": None,
        "enum": None,
        "anyOf": [],
        "properties": None,
        "default": None,
    }
    function = {"name": "look", "parameters": {"type": "object", "properties": {"at": lacking}}}
    assert openai_chat.read_function(function).parameters["properties"] == {"at": lacking}


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (with_schema(properties=None), "tools[].parameters: properties is None, expected an object."),
        (with_schema(properties={"at": None}), "tools[].parameters: properties.at is None, expected a schema."),
        (with_schema(properties={"at": {"enum": 3}}), "tools[].parameters: properties.at.enum is 3, expected a list."),
        (
            with_schema(properties={"at": {"type": [1]}}),
            "tools[].parameters: properties.at.type or required holds 1, expected text.",
        ),
        (with_schema(required=None), "tools[].parameters: required is None, expected a list."),
        (with_schema(required="at"), "tools[].parameters: required is 'at', expected a list."),
        (with_schema(required=[{}]), "tools[].parameters: type or required holds {}, expected text."),
        (with_arguments(nested(3000)), "arguments of a tool call cannot be read: not JSON: nested too deeply."),
        ({**CHAT, "max_completion_tokens": 0}, "max_completion_tokens must be a whole number above 0, got 0."),
        ({**CHAT, "temperature": "hot"}, "temperature must be a number, got 'hot'."),
        ({**CHAT, "temperature": -1}, "temperature must be at least 0, got -1."),
        ({**CHAT, "n": 0}, "n must be a whole number above 0, got 0."),
        ({**CHAT, "n": 2}, "Unsupported: n above 1; each call gets one completion."),
        ({"messages": [{"role": "user"}]}, "A user message has no content; it is text or a list of parts."),
        ({**CHAT, "seed": True}, "seed must be a number, got True."),
        ({**CHAT, "stream": "false"}, "stream must be true or false, got 'false'."),
        ({**CHAT, "metadata": json.loads(nested(900))}, "The request cannot be read as JSON: nested too deeply."),
    ],
)
def test_a_chat_completion_is_refused_with_one_line(body: Any, line: str) -> None:
    status, text = post("chat/completions", body)
    assert status == 400
    error = json.loads(text)["error"]
    assert (error["message"], error["type"]) == (line, "invalid_request_error")


@pytest.mark.parametrize(
    ("path", "body", "line"),
    [
        (
            "responses",
            {"input": "?", "tools": [{"type": "function", "name": "look", "parameters": {"required": "at"}}]},
            "tools[].parameters: required is 'at', expected a list.",
        ),
        (
            "responses",
            {"input": [{"type": "reasoning", "content": "Hm."}, ASKED]},
            "input[].content must be a list, got str.",
        ),
        (
            "messages",
            {**CHAT, "tools": [{"name": "look", "input_schema": {"properties": None}}]},
            "tools[].input_schema: properties is None, expected an object.",
        ),
        ("responses", {"input": "?", "top_p": []}, "top_p must be a number, got []."),
        ("responses", {"input": "?", "stream": 1}, "stream must be true or false, got 1."),
        ("messages", {**CHAT, "top_k": "many"}, "top_k must be a number, got 'many'."),
        (
            "embeddings",
            {},
            "No POST /s/abc/v1/embeddings here; the endpoint answers POST /v1/chat/completions, "
            "POST /v1/responses, POST /v1/messages, POST /v1beta/models/MODEL:generateContent and GET /v1/models.",
        ),
    ],
)
def test_other_apis_refuse_with_one_line(path: str, body: Any, line: str) -> None:
    status, text = post(path, body)
    assert (status, json.loads(text)["error"]["message"]) == (404 if path == "embeddings" else 400, line)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "a \ud83e cut emoji"}]}),
        ("chat/completions", with_schema(properties={"at": {"type": "string", "description": "\udfff"}})),
        ("chat/completions", with_arguments('{"at": "\\ud800"}')),
        ("responses", {"input": "\ud800"}),
        ("messages", {"messages": [{"role": "user", "content": "\ud800"}]}),
    ],
)
def test_halves_of_surrogate_pairs_become_question_marks_as_in_environments(path: str, body: Any) -> None:
    assert post(path, body)[0] == 200


def test_replaced_characters_and_the_deepest_arguments_of_a_policy_are_read() -> None:
    assert openai_chat.arguments_of({"arguments": '{"\\ud800": "\\udfff"}'}) == {"?": "?"}
    assert openai_chat.arguments_of({"arguments": nested(MAX_DEPTH)}) == json.loads(nested(MAX_DEPTH))


@pytest.mark.parametrize("empty", ["", " \n", "{}", "null", None, {}])
def test_empty_arguments_of_a_call_in_a_request_are_none(empty: Any) -> None:
    assert openai_chat.arguments_of({"name": "look", "arguments": empty}) == {}
    part = {"type": "tool_use", "id": "A", "name": "look", "input": empty}
    result = {"type": "tool_result", "tool_use_id": "A", "content": "Milk."}
    said = [ASKED, {"role": "assistant", "content": [part]}, {"role": "user", "content": [result]}]
    (call,) = anthropic.parse({"max_tokens": 9, "messages": said}).messages[1].calls
    item = {"type": "function_call", "call_id": "A", "name": "look", "arguments": empty, "status": "completed"}
    output = {"type": "function_call_output", "call_id": "A", "output": "Milk."}
    (other,) = openai_responses.parse({"input": [ASKED, item, output]}).messages[1].calls
    parts = [{"functionCall": {"name": "look", "args": empty}}]
    replies = [{"functionResponse": {"name": "look", "response": {"output": "Milk."}}}]
    asked = {"role": "user", "parts": [{"text": "Look."}]}
    body = {"contents": [asked, {"role": "model", "parts": parts}, {"role": "user", "parts": replies}]}
    (third,) = gemini.parse(body).messages[1].calls
    assert [dict(one.arguments) for one in (call, other, third) if isinstance(one, ToolCall)] == [{}, {}, {}]


def test_a_call_without_arguments_but_with_an_unknown_key_is_refused_by_name() -> None:
    call = {"id": "A", "type": "function", "function": {"name": "look", "args": {"at": "mug"}}}
    reply = {"role": "tool", "tool_call_id": "A", "content": "Milk."}
    status, text = post("chat/completions", {"messages": [ASKED, {"role": "assistant", "tool_calls": [call]}, reply]})
    assert status == 400 and "unknown key 'args'" in text
    call["function"] = {"name": "look", "arguments": "{}", "provider_specific_fields": {"a": 1}}
    assert post("chat/completions", {"messages": [ASKED, {"role": "assistant", "tool_calls": [call]}, reply]})[0] == 200
