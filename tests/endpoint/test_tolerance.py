"""Requests as agents write them: what does not change the policy's text is ignored, and the rest has a meaning."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from testkit.endpoint_clients import served
from testkit.wire_fields import APIS, BEGIN, END, table

from agentgym.endpoint.calls import CallRefusedError
from agentgym.endpoint.session import EpisodeSession
from agentgym.endpoint.wire import anthropic, gemini, openai_chat, openai_responses
from agentgym.types import ToolCall

PAGE = Path(__file__).resolve().parents[2] / "docs" / "unmodified_agents.md"
USER: Any = {"role": "user", "content": "Where is the milk?"}
BODIES: list[tuple[ModuleType, Any]] = [
    (openai_chat, {"messages": [USER]}),
    (openai_responses, {"input": [USER]}),
    (anthropic, {"messages": [USER]}),
    (gemini, {"contents": [{"role": "user", "parts": [{"text": "Where is the milk?"}]}]}),
]


def test_the_page_lists_the_fields_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip() == table()


@pytest.mark.parametrize(("wire", "body"), BODIES, ids=lambda one: getattr(one, "__name__", ""))
def test_unknown_fields_are_noted_and_leave_the_conversation_as_it_was(wire: ModuleType, body: Any) -> None:
    plain = wire.parse(body)
    more = {"client_metadata": {"a": "b"}, "context_management": {"edits": []}, "user": "u", "\x1b[2J" + "x" * 99: 1}
    call = wire.parse({**body, **more})
    assert (call.messages, call.tools) == (plain.messages, plain.tools)
    assert {"client_metadata", "context_management"} < set(call.ignored) and "user" not in call.ignored
    (strange,) = set(call.ignored) - {"client_metadata", "context_management"}
    assert strange.isprintable() and len(strange) < 70, "names of the agent go to the terminal"


@pytest.mark.parametrize(("wire", "body"), BODIES, ids=lambda one: getattr(one, "__name__", ""))
def test_every_refused_field_is_refused_by_name_unless_it_asks_for_nothing(wire: ModuleType, body: Any) -> None:
    for name in wire.FIELDS.refused:
        nothings: list[Any] = [None, False, 0, "", [], {}]
        for nothing in nothings:
            wire.parse({**body, name: nothing})
        with pytest.raises(CallRefusedError, match=f"Unsupported field: {name}; ") as refused:
            wire.parse({**body, name: {"x": 1}})
        assert refused.value.field == name


def test_no_field_is_in_two_lists() -> None:
    for api in APIS.values():
        assert not api.read & api.fixed and not api.refused.keys() & (api.read | api.fixed)
        assert api.partly.keys() <= api.read | api.fixed


SCHEMA: Any = {"type": "object", "properties": {"at": {"type": "string"}}}


@pytest.mark.parametrize(
    ("wire", "body", "tools", "kinds"),
    [
        (
            openai_chat,
            BODIES[0][1],
            [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}, {"type": "custom"}],
            ["custom"],
        ),
        (
            openai_responses,
            BODIES[1][1],
            [
                {"type": "web_search"},
                {"type": "namespace", "name": "n"},
                {"type": "custom", "name": "c"},
                {"type": "function", "name": "look", "parameters": SCHEMA},
            ],
            ["web_search", "namespace", "custom"],
        ),
        (
            anthropic,
            BODIES[2][1],
            [{"type": "bash_20250124", "name": "bash"}, {"name": "look", "input_schema": SCHEMA}],
            ["bash_20250124"],
        ),
    ],
)
def test_tools_that_the_agent_does_not_run_are_skipped(wire: ModuleType, body: Any, tools: Any, kinds: Any) -> None:
    call = wire.parse({**body, "tools": tools})
    assert [tool.name for tool in call.tools] == ["look"]
    assert list(call.ignored) == [f"tools[] of type {kind}" for kind in kinds]


def test_system_messages_are_accepted_anywhere() -> None:
    late = {"role": "system", "content": "Late."}
    for call in (
        openai_chat.parse({"messages": [late, {"role": "developer", "content": "Two."}, USER, late]}),
        openai_responses.parse(
            {"instructions": "Late.", "input": [{"role": "developer", "content": "Two."}, USER, late]}
        ),
        anthropic.parse({"system": "Late.", "messages": [{"role": "system", "content": "Two."}, USER, late]}),
    ):
        assert [(one.role, one.text) for one in call.messages] == [
            ("system", "Late."), ("system", "Two."), ("user", USER["content"]), ("system", "Late.")
        ]  # fmt: skip


def item(id: str) -> Any:
    return {"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"}


def output(id: str) -> Any:
    return {"type": "function_call_output", "call_id": id, "output": f"Result {id}."}


def use(id: str) -> Any:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "look", "input": {}}]}


def result(*ids: str) -> Any:
    return {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": id, "content": f"Result {id}."} for id in ids],
    }


SAID: Any = {"role": "assistant", "content": "I look."}


def chat_call(id: str) -> Any:
    call = {"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def chat_result(id: str) -> Any:
    return {"role": "tool", "tool_call_id": id, "content": f"Result {id}."}


@pytest.mark.parametrize(
    ("call", "ids"),
    [
        (openai_responses.parse({"input": [USER, item("a"), SAID, output("a")]}), ["a"]),
        (openai_responses.parse({"input": [USER, item("a"), SAID, item("b"), output("a"), output("b")]}), ["a", "b"]),
        (openai_responses.parse({"input": [USER, item("a"), SAID, item("b"), output("b"), output("a")]}), ["a", "b"]),
        (anthropic.parse({"messages": [USER, use("a"), use("b"), result("a", "b")]}), ["a", "b"]),
        (anthropic.parse({"messages": [USER, use("a"), SAID, result("a")]}), ["a"]),
        (
            openai_chat.parse({"messages": [USER, chat_call("a"), chat_call("b"), chat_result("b"), chat_result("a")]}),
            ["a", "b"],
        ),
        (
            openai_chat.parse(
                {"messages": [USER, chat_call("a"), chat_call("b"), chat_result("b"), USER, chat_result("a")]}
            ),
            ["b", "a"],
        ),
    ],
)
def test_what_stands_between_a_call_and_its_result_joins_its_turn(call: Any, ids: list[str]) -> None:
    (said,) = [one for one in call.messages if one.role == "assistant"]
    assert {one.id for one in said.calls if isinstance(one, ToolCall)} == set(ids)
    assert said.text in ("", "I look.")
    assert [one.result.call_id for one in call.messages if one.role == "tool"] == ids


def test_neighbouring_answers_without_results_stay_apart() -> None:
    call = openai_responses.parse({"input": [USER, SAID, SAID, USER]})
    assert [one.role for one in call.messages] == ["user", "assistant", "assistant", "user"]


def test_a_result_of_no_call_is_still_refused() -> None:
    with pytest.raises(CallRefusedError, match="'z' must follow"):
        anthropic.parse({"messages": [USER, use("a"), SAID, result("z")]})


def test_blocks_of_a_message_have_a_meaning() -> None:
    blocks = [
        {"type": "text", "text": "One. ", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Two."},
    ]
    thinking = [{"type": "redacted_thinking", "data": "x"}, {"type": "thinking", "thinking": "Hm.", "signature": "s"}]
    failed = {"type": "tool_result", "tool_use_id": "a", "is_error": True, "cache_control": {"type": "ephemeral"}}
    image = {"type": "image", "source": {"type": "base64", "data": "iVBO"}}
    said: Any = {"role": "assistant", "content": [*thinking, *use("a")["content"]]}
    last = {"role": "user", "content": [{**failed, "content": [{"type": "text", "text": "No."}, image]}, *blocks]}
    call = anthropic.parse({"messages": [{"role": "user", "content": blocks}, said, last]})
    assert [one.text for one in call.messages] == [
        "One. Two.", "", "No.[image: this model reads text only]", "One. Two."
    ]  # fmt: skip
    assert call.messages[1].thinking == "Hm."
    assert call.ignored == ("messages[].content[].is_error", "content[].content of type image")
    asked = [{"type": "text", "text": "Look: "}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    seen = openai_chat.parse({"messages": [{"role": "user", "content": asked, "name": "ann"}]})
    assert seen.messages[0].text == "Look: [image: this model reads text only]"
    assert set(seen.ignored) == {"messages[].content of type image_url", "messages[].name"}


def test_reasoning_of_other_servers_and_refusals_are_texts_of_the_assistant() -> None:
    said: Any = {
        "role": "assistant",
        "content": None,
        "refusal": "I must not.",
        "reasoning": "Hm.",
        "reasoning_details": [{}],
    }
    call = openai_chat.parse({"messages": [USER, said, USER]})
    assert (call.messages[1].text, call.messages[1].thinking) == ("I must not.", "Hm.")
    assert call.ignored == ("messages[].reasoning_details",)
    with pytest.raises(CallRefusedError, match="use tool_calls"):
        openai_chat.parse({"messages": [USER, {"role": "assistant", "function_call": {"name": "f"}}, USER]})


def test_reasoning_on_both_sides_of_a_message_is_kept_with_its_call() -> None:
    def reasoning(text: str) -> Any:
        return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]}

    wanted = {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "a"}
    done = {"type": "function_call_output", "call_id": "a", "output": "x"}
    both = openai_responses.parse({"input": [USER, reasoning("One."), SAID, reasoning("Two."), wanted, done]})
    assert both.messages[1].thinking == "One.\nTwo." and len(both.messages[1].calls) == 1
    late = openai_responses.parse({"input": [USER, SAID, reasoning("Two."), wanted, done]})
    assert late.messages[1].thinking == "Two."


def test_gemini_s_conversation_is_read_whole() -> None:
    declared = {
        "name": "look",
        "description": "Look.",
        "parameters": {"type": "OBJECT", "properties": {"at": {"type": "STRING"}}},
    }
    wanted = {"name": "look", "args": {"at": "x"}}
    body = {
        "system_instruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"parts": [{"text": "Where "}, {"text": "is it?"}, {"inlineData": {"mimeType": "image/png", "data": ""}}]},
            {"role": "model", "parts": [{"text": "Hm.", "thought": True}, {"functionCall": wanted}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"output": "Milk."}}}]},
        ],
        "tools": [{"functionDeclarations": [declared]}, {"googleSearch": {}}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
        "generationConfig": {"temperature": 0, "maxOutputTokens": 5, "stopSequences": ["x"], "mediaResolution": "LOW"},
        "safetySettings": [],
    }  # fmt: skip
    call = gemini.parse(body)
    assert [(one.role, one.text) for one in call.messages] == [
        ("system", "Be brief."), ("user", "Where is it?[image: this model reads text only]"), ("assistant", ""),
        ("tool", "Milk."),
    ]  # fmt: skip
    assert call.messages[3].result.call_id == call.messages[2].calls[0].id  # type: ignore[union-attr]
    assert call.tools[0].parameters == {"type": "object", "properties": {"at": {"type": "string"}}}
    assert (call.max_tokens, call.stops) == (5, ("x",))
    assert set(call.overridden) == {"temperature", "tool_choice"}
    assert {"generationConfig.mediaResolution", "safetySettings", "tools[].googleSearch"} < set(call.ignored)
    wrong: Any = [
        ({"generationConfig": {"candidateCount": 2}}, "candidateCount above 1"),
        ({"generationConfig": {"responseSchema": {"type": "OBJECT"}}}, "responseSchema"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}}, "tool_choice 'none'"),
        ({"contents": [{"role": "bot", "parts": []}]}, "Unknown role 'bot'"),
        ({"contents": [{"parts": [{"executableCode": {}}]}]}, "executableCode"),
        ({"contents": 3}, "contents must be a list"),
    ]
    for change, line in wrong:
        with pytest.raises(CallRefusedError, match=line):
            gemini.parse({**body, **change})


def test_prompts_are_counted_without_a_completion_and_gemini_answers() -> None:
    look = '<tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>'
    tools = [{"functionDeclarations": [{"name": "look", "parametersJsonSchema": SCHEMA}]}]

    async def use(url: str, session: EpisodeSession) -> list[Any]:
        async with httpx.AsyncClient(trust_env=False, base_url=f"{url}/s/abc") as client:
            found = []
            for last in ([USER], [USER, SAID]):
                count = await client.post("/v1/messages/count_tokens?beta=true", json={"messages": last})
                found.append(count.json()["input_tokens"])
            contents: Any = [{"role": "user", "parts": [{"text": USER["content"]}]}]
            body = {"contents": contents, "tools": tools}
            models = "/v1beta/models/gemini-3-pro"
            found.append(
                (await client.post(f"{models}:countTokens", json={"contents": contents})).json()["totalTokens"]
            )
            said = (await client.post(f"{models}:generateContent", json=body)).json()["candidates"][0]["content"]
            reply = {"name": "look", "id": said["parts"][0]["functionCall"]["id"], "response": {"output": "Milk."}}
            contents += [said, {"role": "user", "parts": [{"functionResponse": reply}]}]
            streamed = await client.post(f"{models}:streamGenerateContent?alt=sse", json=body)
            found.append(json.loads(streamed.text.removeprefix("data: "))["candidates"][0]["finishReason"])
            found.append((await client.post(f"{models}:embedContent", json=body)).status_code)
            unknown = await httpx.AsyncClient(trust_env=False).post(f"{url}{models}:generateContent?key=no", json=body)
            return [*found, unknown.json()["error"]["status"]]

    found, session = served(use, look)
    assert 0 < found[0] == found[2] < found[1]
    assert found[3:] == ["STOP", 404, "NOT_FOUND"]
    assert [len(row) for row in session.graph.segments()] == [2], "counting neither samples nor forks"


@pytest.mark.parametrize("is_stream", [False, True])
def test_token_ids_are_returned_by_vllm_s_names(is_stream: bool) -> None:
    async def use(url: str, session: EpisodeSession) -> Any:
        async with httpx.AsyncClient(trust_env=False) as client:
            body = {"messages": [USER], "return_token_ids": True, "stream": is_stream}
            answer = await client.post(f"{url}/s/abc/v1/chat/completions", json=body)
            if not is_stream:
                return answer.json()["prompt_token_ids"], answer.json()["choices"][0]["token_ids"]
            rows = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
            ids = [one for row in rows for one in row["choices"][0].get("token_ids", ())]
            return next(row["prompt_token_ids"] for row in rows if "prompt_token_ids" in row), ids

    found, session = served(use, "In the fridge.")
    (one,) = session.graph.sampled
    assert found == (list(one.added_ids), list(one.completion.token_ids))
