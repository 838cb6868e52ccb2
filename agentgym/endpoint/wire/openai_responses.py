"""OpenAI's Responses API: https://platform.openai.com/docs/api-reference/responses

The endpoint stores no responses, so agents send the whole conversation as ``input``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from agentgym.endpoint.calls import (
    Answer,
    CallRefusedError,
    ChatCall,
    as_flag,
    as_limit,
    as_list,
    as_object,
    as_text,
    check_conversation,
)
from agentgym.endpoint.wire import openai_chat
from agentgym.endpoint.wire.fields import Fields, Notes
from agentgym.endpoint.wire.openai_chat import arguments_of, check_tool_choice, logprob_rows, read_content, read_tools
from agentgym.types import Message, ToolCall, ToolResult

_STATEFUL = "send the whole conversation as input"
FIELDS: Final = Fields(
    read=frozenset(("input", "instructions", "tools", "tool_choice", "max_output_tokens", "stream", "include", "text")),
    fixed=frozenset(("temperature", "top_p", "reasoning", "parallel_tool_calls", "truncation")),
    refused={
        "previous_response_id": _STATEFUL,
        "conversation": _STATEFUL,
        "prompt": _STATEFUL,
        "background": "answers are sent when they are complete",
    },
    partly={
        "text": "a format other than text",
        "tool_choice": "none, or a certain tool",
        "input": "the assistant's message as the last item",
    },
)
"""Fields of the API."""
_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"

error = openai_chat.error


def parse(body: Mapping[str, Any]) -> ChatCall:
    """Parse the body of a request.

    Raises:
        CallRefusedError: a field is wrong or not supported; the message names it.
    """
    notes = FIELDS.checked(body)
    form = as_object(as_object(body.get("text") or {}, "text").get("format") or {"type": "text"}, "text.format")
    if form.get("type") != "text":
        raise CallRefusedError("unsupported", "Unsupported: text.format other than text.", "text.format")
    included = as_list(body.get("include") or [], "include")
    for one in included:
        if one not in (_LOGPROBS, _ENCRYPTED):
            notes.ignore(f"include {one}")
    check_tool_choice(body.get("tool_choice"), notes)
    instructions = body.get("instructions")
    first = [Message("system", as_text(instructions, "instructions"))] if instructions else []
    return ChatCall(
        messages=check_conversation([*first, *_conversation(body.get("input"), notes)]),
        tools=read_tools(body.get("tools"), ("function",), notes),
        max_tokens=as_limit(body.get("max_output_tokens"), "max_output_tokens"),
        wants_logprobs=_LOGPROBS in included,
        is_stream=as_flag(body.get("stream"), "stream"),
        overridden=tuple(notes.overridden),
        ignored=tuple(notes.ignored),
    )


def response(answer: Answer, model: str) -> dict[str, Any]:
    """Return an answer as a ``response``."""
    total = answer.num_prompt_tokens + answer.num_completion_tokens
    usage = {
        "input_tokens": answer.num_prompt_tokens, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": answer.num_completion_tokens, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": total,
    }  # fmt: skip
    is_cut = answer.is_cut and not answer.calls
    return {
        **_head(answer, model),
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": _items(answer),
        "usage": usage,
    }


def events(answer: Answer, model: str) -> Iterator[str]:
    """Return an answer as the server-sent events of a stream."""
    begun = {**_head(answer, model), "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    done = response(answer, model)
    written = [("response.created", {"response": begun}), ("response.in_progress", {"response": begun})]
    for index, item in enumerate(done["output"]):
        written += _item_events(index, item)
    written.append((f"response.{done['status']}", {"response": done}))
    for number, (kind, payload) in enumerate(written):
        data = {"type": kind, "sequence_number": number, **payload}
        yield f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


# ------------------------------------------------------------------------------------------------------- requests


def _conversation(given: object, notes: Notes) -> list[Message]:
    """Convert the input to messages. An assistant message and the calls after it form one turn."""
    if isinstance(given, str):
        return [Message("user", given)]
    found: list[Message] = []
    thinking = ""
    for entry in as_list(given, "input"):
        item = as_object(entry, "input[]")
        kind = item.get("type") or "message"
        if kind == "reasoning":
            parts = as_list(item.get("content") or [], "input[].content")
            thinking = "".join(str(as_object(part, "input[].content[]").get("text", "")) for part in parts)
            continue
        message = _item(kind, item, notes)
        if message.role == "assistant":
            message = Message("assistant", message.content, message.calls, thinking=thinking, answer=message.text)
            thinking = ""
            if message.calls and found and found[-1].role == "assistant":
                message = _joined(found.pop(), message)
        found.append(message)
    return found


def _joined(first: Message, second: Message) -> Message:
    calls = (*first.calls, *second.calls)
    thinking = "\n".join(part for part in (first.thinking, second.thinking) if part)
    return Message("assistant", first.text, calls, thinking=thinking, answer=first.text)


def _item(kind: object, item: Mapping[str, Any], notes: Notes) -> Message:
    if kind == "function_call":
        name = as_text(item.get("name"), "input[].name")
        call = ToolCall(name, arguments_of(item), as_text(item.get("call_id"), "input[].call_id"))
        return Message("assistant", "", (call,), answer="")
    if kind == "function_call_output":
        text = read_content(item.get("output"), "input[].output", notes)
        return Message("tool", text, result=ToolResult(text, "", as_text(item.get("call_id"), "input[].call_id")))
    if kind != "message":
        raise CallRefusedError("unsupported", f"Unsupported: input of type {kind!r}.", "input")
    role, text = item.get("role"), read_content(item.get("content"), "input[].content", notes)
    if role in ("system", "developer"):
        return Message("system", text)
    if role == "user":
        return Message("user", text)
    if role == "assistant":
        return Message("assistant", text, answer=text)
    raise CallRefusedError("invalid", f"Unknown role {role!r}; expected system, user or assistant.", "input")


# -------------------------------------------------------------------------------------------------------- answers


def _head(answer: Answer, model: str) -> dict[str, Any]:
    return {
        "id": f"resp_{answer.id}", "object": "response", "created_at": int(time.time()), "model": model, "error": None,
        "instructions": None, "metadata": {}, "parallel_tool_calls": True, "temperature": None, "top_p": None,
        "tool_choice": "auto", "tools": [], "store": False,
    }  # fmt: skip


def _items(answer: Answer) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if answer.thinking:
        part = {"type": "reasoning_text", "text": answer.thinking}
        items.append({"id": f"rs_{answer.id}", "type": "reasoning", "summary": [], "content": [part]})
    if answer.text or not answer.calls:
        logprobs = logprob_rows(answer.tokens)
        said: dict[str, Any] = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": logprobs}
        items.append(
            {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "status": "completed", "content": [said]}
        )
    for call in answer.calls:
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
        items.append(
            {"id": f"fc_{call.id}", "type": "function_call", "call_id": call.id, "name": call.name,
             "arguments": arguments, "status": "completed"}
        )  # fmt: skip
    return items


def _item_events(index: int, item: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of one output item: added, its parts, done."""
    where = {"item_id": item["id"], "output_index": index}
    if item["type"] == "function_call":
        empty = {**item, "arguments": "", "status": "in_progress"}
        middle: list[tuple[str, dict[str, Any]]] = [
            ("response.function_call_arguments.delta", {**where, "delta": item["arguments"]}),
            ("response.function_call_arguments.done", {**where, "name": item["name"], "arguments": item["arguments"]}),
        ]
    elif item["type"] == "message":
        part = item["content"][0]
        inside = {**where, "content_index": 0}
        empty = {**item, "content": [], "status": "in_progress"}
        said = {"text": part["text"], "logprobs": part["logprobs"]}
        middle = [
            ("response.content_part.added", {**inside, "part": {**part, "text": "", "logprobs": []}}),
            ("response.output_text.delta", {**inside, "delta": part["text"], "logprobs": part["logprobs"]}),
            ("response.output_text.done", {**inside, **said}),
            ("response.content_part.done", {**inside, "part": part}),
        ]
    else:
        empty, middle = {**item, "content": []}, []
    added = ("response.output_item.added", {"output_index": index, "item": empty})
    return [added, *middle, ("response.output_item.done", {"output_index": index, "item": item})]
