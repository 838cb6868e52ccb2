"""Each text of a conversation is in the prompt, in every chat template that TRL ships."""

from __future__ import annotations

import copy

import pytest
from testkit.family_episodes import NAMES, UNKNOWN, tokenizer_of
from testkit.own_tokenizers import needs, own_tokenizer

from agentgym.endpoint.graph import CallGraph
from agentgym.errors import UsageError
from agentgym.render.chat import ChatRenderer
from agentgym.render.guard import control_texts
from agentgym.types import Message, ToolCall, ToolResult, ToolSpec

LOOK = ToolSpec("look", "Look.", {"type": "object", "properties": {"at": {"type": "string"}}})


def system(number: int) -> Message:
    return Message("system", f"system-{number}")


def user(number: int) -> Message:
    return Message("user", f"user-{number}")


def said(number: int, *calls: int) -> Message:
    text = f"said-{number}" if number else ""
    wanted = tuple(ToolCall("look", {"at": f"place-{one}"}, f"c{one}") for one in calls)
    return Message("assistant", text, wanted, answer=text)


def result(number: int) -> Message:
    return Message("tool", f"result-{number}", result=ToolResult(f"result-{number}", "look", f"c{number}"))


CONVERSATIONS = {
    "two system messages": [system(1), system(2), user(1)],
    "a late system message": [user(1), system(1)],
    "a system message within": [system(1), user(1), said(1), system(2), user(2)],
    "a system message at the end": [system(1), user(1), said(1), user(2), system(2)],
    "two neighbouring answers": [user(1), said(1), said(2), user(2)],
    "a system message after a result": [user(1), said(0, 1), result(1), system(1)],
    "a system message in place of a result": [user(1), said(0, 1), system(1)],
    "a system message before a result": [user(1), said(0, 1), system(1), result(1)],
    "an answer after a call": [user(1), said(0, 1), said(1), user(2)],
    "two calls": [user(1), said(0, 1, 2), result(1), result(2), user(2)],
    "long": [user(1), said(0, 1), result(1), said(1), system(1), user(2), said(0, 2), result(2)],
    "a system message alone": [system(1)],
    "text beside a call": [user(1), said(1, 1), result(1), said(2), user(2)],
    "text beside each call": [user(1), said(1, 1), result(1), said(2, 2), result(2), said(3, 3), result(3)],
}


def texts_of(messages: list[Message]) -> list[str]:
    calls = [str(call.arguments["at"]) for one in messages for call in one.calls if isinstance(call, ToolCall)]
    return [*(one.text for one in messages if one.text), *calls]


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(UNKNOWN)))
def test_each_text_is_in_the_prompt_once_or_the_messages_are_refused(name: str) -> None:
    renderer = ChatRenderer(tokenizer_of(name))
    graph = CallGraph(renderer)
    num_refused = 0
    for tools in ((), (LOOK,)):
        for what, messages in CONVERSATIONS.items():
            own = [graph._own(one, tools) for one in messages]
            try:
                prompt = renderer.template.render(own, tools)
            except UsageError:
                num_refused += 1
                assert what == "a system message alone", what
                continue
            lost = [text for text in texts_of(messages) if prompt.count(text) != 1]
            assert not lost, (what, lost)
    assert num_refused <= 1


@pytest.mark.parametrize("template", ["qwen2_5", "phi3", "gemma"])
@pytest.mark.parametrize("role", ["user", "tool", "system"])
@needs("qwen3")
def test_control_tokens_that_the_template_does_not_name_stay_text(template: str, role: str) -> None:
    tokenizer = copy.deepcopy(own_tokenizer("qwen3"))
    tokenizer.chat_template = tokenizer_of(template).chat_template
    renderer = ChatRenderer(tokenizer)
    marks = [text for text in control_texts(tokenizer) if "think" in text or "tool_response" in text]
    assert {"<think>", "</think>", "<tool_response>"} <= set(marks)
    added = {id for id, token in tokenizer.added_tokens_decoder.items() if str(token.content) in marks}
    shown = "".join(marks)
    last = Message("tool", shown, result=ToolResult(shown, "look", "c1")) if role == "tool" else Message(role, shown)  # type: ignore[arg-type]
    opening = [user(1), said(0, 1)] if role == "tool" else [user(1), said(1)]
    plain = renderer.prompt_ids([*opening, Message("user", "nothing")], [LOOK])
    ids = renderer.prompt_ids([*opening, last], [LOOK])
    assert sum(one in added for one in ids) <= sum(one in added for one in plain) + (role == "tool") * 2
    assert all(mark in renderer.text_of(ids) for mark in marks)
