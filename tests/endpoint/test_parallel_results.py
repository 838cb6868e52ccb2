"""Results of parallel calls belong to the calls whose ids they hold, in whatever order an agent returns them."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from testkit.endpoint_clients import check_linear, openai_client, served

from agentgym.endpoint.calls import CallRefusedError
from agentgym.endpoint.session import EpisodeSession
from agentgym.endpoint.wire import anthropic, openai_chat, openai_responses
from agentgym.types import Observation

LOOK = '<tool_call>{{"name": "look", "arguments": {{"at": "{}"}}}}</tool_call>'
TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
ASKED: Any = {"role": "user", "content": "Where is the milk?"}


def chat(*ids: str) -> Observation:
    calls = [{"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}} for id in "AB"]
    results = [{"role": "tool", "tool_call_id": id, "content": f"result of {id}"} for id in ids]
    body = {"messages": [ASKED, {"role": "assistant", "content": None, "tool_calls": calls}, *results]}
    return openai_chat.parse(body).messages


def responses(*ids: str) -> Observation:
    calls = [{"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"} for id in "AB"]
    results = [{"type": "function_call_output", "call_id": id, "output": f"result of {id}"} for id in ids]
    return openai_responses.parse({"input": [ASKED, *calls, *results]}).messages


def messages(*ids: str) -> Observation:
    calls = [{"type": "tool_use", "id": id, "name": "look", "input": {}} for id in "AB"]
    results = [{"type": "tool_result", "tool_use_id": id, "content": f"result of {id}"} for id in ids]
    given = [ASKED, {"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    return anthropic.parse({"messages": given}).messages


@pytest.mark.parametrize("read", [chat, responses, messages])
def test_results_are_put_in_the_order_of_their_calls(read: Any) -> None:
    assert [one.text for one in read("B", "A")[2:]] == ["result of A", "result of B"]
    assert [one.text for one in read("B")[2:]] == ["result of B"]


@pytest.mark.parametrize("read", [chat, responses, messages])
@pytest.mark.parametrize("ids", ["AZ", "ABB"], ids=["unknown", "second result"])
def test_a_result_without_an_open_call_is_refused(read: Any, ids: str) -> None:
    with pytest.raises(CallRefusedError, match=f"The tool result with the id '{ids[-1]}' must follow an assistant"):
        read(*ids)


def test_a_result_without_an_id_keeps_its_place() -> None:
    read = chat("", "B", "A")  # as `act()` answers a malformed call before two well-formed ones
    assert [one.text for one in read[2:]] == ["result of ", "result of A", "result of B"]


def test_tokens_are_only_appended_when_results_come_in_another_order() -> None:
    async def use(url: str, session: EpisodeSession) -> None:
        client = openai_client(url)
        history: list[Any] = [ASKED]
        for number in range(3):
            done: Any = await client.chat.completions.create(model="m", messages=history, tools=TOOLS)
            first, second = done.choices[0].message.tool_calls
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": f"{number} {call.function.arguments}"}
                for call in ((second, first) if number % 2 == 0 else (first, second))
            ]
            history += [done.choices[0].message.to_dict(), *results]
        lost = [*history, {"role": "tool", "tool_call_id": "lost", "content": "?"}]
        with pytest.raises(openai.BadRequestError, match="'lost' must follow an assistant message") as raised:
            await client.chat.completions.create(model="m", messages=lost, tools=TOOLS)
        assert (raised.value.type, raised.value.param) == ("invalid_request_error", "messages")

    _, session = served(use, LOOK.format("the fridge") + LOOK.format("the table"))
    check_linear(session, 3)
    results = [one.text for one in session.graph.sampled[-1].history if one.role == "tool"]
    places = ("the fridge", "the table")
    assert results == [f'{number} {{"at": "{place}"}}' for number in range(2) for place in places]
