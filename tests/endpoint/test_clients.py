"""The official clients of OpenAI and Anthropic against the endpoint."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from testkit.endpoint_clients import anthropic_client, check_linear, openai_client, served

from agentgym.endpoint.session import EpisodeSession

LOOK = '<tool_call>{"name": "look", "arguments": {"at": "the fridge"}}</tool_call>'
PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": PARAMETERS}}
TOOL: Any = {"type": "function", "name": "look", "description": "Look.", "parameters": PARAMETERS, "strict": False}
ANTHROPIC_TOOL: Any = {"name": "look", "description": "Look.", "input_schema": PARAMETERS}


@pytest.mark.parametrize("is_stream", [False, True])
def test_openai_chat_completions_call_tools_in_one_segment(is_stream: bool) -> None:
    async def use(url: str, session: EpisodeSession) -> Any:
        client = openai_client(url)
        messages: list[Any] = [{"role": "user", "content": "Where is the milk?"}]
        for _ in range(2):
            if is_stream:
                async with client.chat.completions.stream(
                    model="gpt-5", messages=messages, tools=[CHAT_TOOL]
                ) as stream:
                    done: Any = await stream.get_final_completion()
            else:
                done = await client.chat.completions.create(model="gpt-5", messages=messages, tools=[CHAT_TOOL])
            said = done.choices[0].message
            assert done.choices[0].finish_reason == "tool_calls"
            (call,) = said.tool_calls
            assert (call.function.name, json.loads(call.function.arguments)) == ("look", {"at": "the fridge"})
            kept = {"id": call.id, "type": "function", "function": {"name": "look", "arguments": '{"at":"the fridge"}'}}
            messages += [{"role": "assistant", "content": None, "tool_calls": [kept]}]
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "Milk."}]

    _, session = served(use, LOOK)
    check_linear(session)


@pytest.mark.parametrize("is_stream", [False, True])
def test_openai_responses_call_tools_in_one_segment(is_stream: bool) -> None:
    async def use(url: str, session: EpisodeSession) -> Any:
        client = openai_client(url)
        items: list[Any] = [{"role": "user", "content": "Where is the milk?"}]
        for _ in range(2):
            if is_stream:
                async with client.responses.stream(model="gpt-5", input=items, tools=[TOOL]) as stream:
                    done: Any = await stream.get_final_response()
            else:
                done = await client.responses.create(model="gpt-5", input=items, tools=[TOOL], instructions=None)
            (call,) = done.output
            assert (call.type, json.loads(call.arguments)) == ("function_call", {"at": "the fridge"})
            items += [call.model_dump(exclude_none=True)]
            items += [{"type": "function_call_output", "call_id": call.call_id, "output": "Milk."}]

    _, session = served(use, LOOK)
    check_linear(session)


@pytest.mark.parametrize("is_stream", [False, True])
def test_anthropic_messages_call_tools_in_one_segment(is_stream: bool) -> None:
    async def use(url: str, session: EpisodeSession) -> Any:
        client = anthropic_client(url)
        messages: list[Any] = [{"role": "user", "content": "Where is the milk?"}]
        asked: Any = {"model": "claude", "max_tokens": 64, "system": "Be brief.", "tools": [ANTHROPIC_TOOL]}
        for _ in range(2):
            if is_stream:
                async with client.messages.stream(messages=messages, **asked) as stream:
                    done: Any = await stream.get_final_message()
            else:
                done = await client.messages.create(messages=messages, **asked)
            assert done.stop_reason == "tool_use"
            (call,) = done.content
            assert (call.name, call.input) == ("look", {"at": "the fridge"})
            result = {"type": "tool_result", "tool_use_id": call.id, "content": "Milk."}
            messages += [{"role": "assistant", "content": done.content}, {"role": "user", "content": [result]}]

    _, session = served(use, LOOK)
    check_linear(session)


@pytest.mark.parametrize("is_stream", [False, True])
def test_each_api_says_text(is_stream: bool) -> None:
    async def use(url: str, session: EpisodeSession) -> list[str]:
        client, other = openai_client(url), anthropic_client(url)
        asked: Any = [{"role": "user", "content": "Hello?"}]
        if not is_stream:
            chat = await client.chat.completions.create(model="m", messages=asked, logprobs=True)
            assert [row.logprob for row in chat.choices[0].logprobs.content] == list(  # type: ignore[union-attr]
                session.graph.sampled[0].completion.logprobs
            )
            answer = await client.responses.create(model="m", input="Hello?")
            message: Any = await other.messages.create(model="m", max_tokens=9, messages=asked)
            return [str(chat.choices[0].message.content), answer.output_text, message.content[0].text]
        async with client.chat.completions.stream(model="m", messages=asked) as chats:
            chat = await chats.get_final_completion()
        async with client.responses.stream(model="m", input="Hello?") as answers:
            answer = await answers.get_final_response()
        async with other.messages.stream(model="m", max_tokens=9, messages=asked) as stream:
            text = await stream.get_final_text()
        return [str(chat.choices[0].message.content), answer.output_text, text]

    found, session = served(use, "Go to the fridge.")
    assert found == ["Go to the fridge."] * 3
    assert [len(row) for row in session.graph.segments()] == [1, 1, 1]


def test_bytes_of_tokens_are_the_text_also_where_tokens_end_within_characters() -> None:
    text = "a🧑‍🚀𝒳\n"

    async def use(url: str, session: EpisodeSession) -> tuple[list[Any], list[Any]]:
        client = openai_client(url)
        chat: Any = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hello?"}], logprobs=True
        )
        answer: Any = await client.responses.create(model="m", input="Hello?", include=["message.output_text.logprobs"])
        return chat.choices[0].logprobs.content, answer.output[0].content[0].logprobs

    found, _ = served(use, text)
    for rows in found:
        assert any("\ufffd" in row.token for row in rows)
        assert bytes(byte for row in rows for byte in row.bytes).decode() == f"{text}<|im_end|>"


def test_refusals_have_each_api_s_own_form() -> None:
    async def use(url: str, session: EpisodeSession) -> None:
        client, other = openai_client(url), anthropic_client(url)
        asked: Any = [{"role": "user", "content": "Hello?"}]
        with pytest.raises(openai.BadRequestError, match="n above 1"):
            await client.chat.completions.create(model="m", messages=asked, n=2)
        with pytest.raises(openai.BadRequestError, match="Unsupported field: logit_bias"):
            await client.chat.completions.create(model="m", messages=asked, logit_bias={"1": 1})
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            await client.responses.create(model="m", input="Hello?", previous_response_id="r")
        with pytest.raises(anthropic.BadRequestError, match="Unsupported field: output_format"):
            form = {"output_format": {"type": "json_schema"}}
            await other.messages.create(model="m", max_tokens=9, messages=asked, extra_body=form)
        longer: Any = [{"role": "user", "content": "Hello? " * 200}]
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(model="m", messages=longer)
        assert raised.value.code == "context_length_exceeded"
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await other.messages.create(model="m", max_tokens=9, messages=longer)
        with pytest.raises(openai.NotFoundError, match="No such session"):
            await openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x").chat.completions.create(
                model="m", messages=asked
            )
        await client.chat.completions.create(model="m", messages=asked, temperature=0.0)
        assert [one.id async for one in client.models.list()] == ["policy"]

    _, session = served(use, "Hello.", window=200)
    assert session.overridden == {"temperature"}
    assert len(session.graph.sampled) == 1
