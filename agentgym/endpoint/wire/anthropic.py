"""Anthropic's Messages API: https://docs.anthropic.com/en/api/messages"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from agentgym.endpoint.calls import (
    Answer,
    CallRefusedError,
    ChatCall,
    as_flag,
    as_limit,
    as_list,
    as_object,
    as_stops,
    as_text,
    check_conversation,
)
from agentgym.endpoint.wire.fields import Fields, Notes, unseen_text
from agentgym.endpoint.wire.openai_chat import arguments_of, check_tool_choice, read_tools
from agentgym.types import Message, ToolCall, ToolResult

FIELDS: Final = Fields(
    read=frozenset(("messages", "system", "tools", "tool_choice", "max_tokens", "stream", "stop_sequences")),
    fixed=frozenset(("temperature", "top_p", "top_k", "thinking", "output_config")),
    refused={"output_format": "the policy's text is never constrained"},
    partly={
        "output_config": "a format other than text",
        "tool_choice": "none, or a certain tool",
        "messages": "the assistant's as the last one",
    },
)
"""Fields of the API."""
_MESSAGE = frozenset(("role", "content", "cache_control"))
_RESULT = frozenset(("type", "tool_use_id", "content", "cache_control"))


def parse(body: Mapping[str, Any]) -> ChatCall:
    """Parse the body of a request.

    Raises:
        CallRefusedError: a field is wrong or not supported; the message names it.
    """
    return _call(body)


def parse_count(body: Mapping[str, Any]) -> ChatCall:
    """Parse the body of a request for the number of its tokens; errors are those of :func:`parse`."""
    return _call(body, is_counted=True)


def count_response(num_tokens: int) -> dict[str, Any]:
    """Return the answer to a request for the number of tokens."""
    return {"input_tokens": num_tokens}


def response(answer: Answer, model: str) -> dict[str, Any]:
    """Return an answer as a ``message``."""
    content = [_block(kind, value) for kind, value in _blocks(answer)]
    return {**_head(answer, model), "content": content, **_end(answer), "usage": _usage(answer)}


def events(answer: Answer, model: str) -> Iterator[str]:
    """Return an answer as the server-sent events of a stream."""
    begun = {
        **_head(answer, model),
        "content": [],
        "stop_reason": None,
        "usage": {**_usage(answer), "output_tokens": 0},
    }
    yield _event("message_start", message=begun)
    for index, (kind, value) in enumerate(_blocks(answer)):
        yield _event("content_block_start", index=index, content_block=_empty_block(kind, value))
        yield _event("content_block_delta", index=index, delta=_delta(kind, value))
        if kind == "thinking":
            yield _event("content_block_delta", index=index, delta={"type": "signature_delta", "signature": _SIGNATURE})
        yield _event("content_block_stop", index=index)
    yield _event("message_delta", delta=_end(answer), usage={"output_tokens": answer.num_completion_tokens})
    yield _event("message_stop")


def error(refused: CallRefusedError) -> dict[str, Any]:
    """Return an error in the API's format."""
    kinds = {"unknown_session": "not_found_error", "engine": "api_error", "limit": "permission_error"}
    message = str(refused)
    if refused.reason == "too_long":
        message = f"prompt is too long: {message}"
    return {"type": "error", "error": {"type": kinds.get(refused.reason, "invalid_request_error"), "message": message}}


# ------------------------------------------------------------------------------------------------------- requests


def _call(body: Mapping[str, Any], *, is_counted: bool = False) -> ChatCall:
    notes = FIELDS.checked(body)
    form = as_object(body.get("output_config") or {}, "output_config").get("format") or {"type": "text"}
    if as_object(form, "output_config.format").get("type") != "text":
        raise CallRefusedError("unsupported", "Unsupported: output_config.format other than text.", "output_config")
    choice = body.get("tool_choice")
    check_tool_choice(as_object(choice, "tool_choice").get("type") if choice is not None else None, notes)
    system = _text(body.get("system"), "system", notes)
    messages = [Message("system", system)] if system else []
    for one in as_list(body.get("messages"), "messages"):
        messages += _messages(as_object(one, "messages[]"), notes)
    return ChatCall(
        messages=check_conversation(messages, is_counted=is_counted),
        tools=read_tools(body.get("tools"), (None, "custom"), notes, schema="input_schema"),
        max_tokens=as_limit(body.get("max_tokens"), "max_tokens"),
        stops=as_stops(body.get("stop_sequences"), "stop_sequences"),
        is_stream=as_flag(body.get("stream"), "stream"),
        overridden=tuple(notes.overridden),
        ignored=tuple(notes.ignored),
    )


def _messages(given: Mapping[str, Any], notes: Notes) -> list[Message]:
    """Convert one message of the API to messages. Tool results become separate messages."""
    notes.skips(given, _MESSAGE, "messages[].")
    role, content = given.get("role"), given.get("content")
    if role == "system":
        return [Message("system", _text(content, "messages[].content", notes))]
    if role not in ("user", "assistant"):
        raise CallRefusedError("invalid", f"Unknown role {role!r}; expected user, assistant or system.", "messages")
    if isinstance(content, str):
        return [Message(role, content, answer=content if role == "assistant" else None)]
    parts = [as_object(part, "messages[].content[]") for part in as_list(content, "messages[].content")]
    return [_assistant(parts)] if role == "assistant" else _user(parts, notes)


def _assistant(parts: list[Mapping[str, Any]]) -> Message:
    texts, calls, thinking = [], [], []
    for part in parts:
        kind = part.get("type")
        if kind == "text":
            texts.append(as_text(part.get("text"), "content[].text"))
        elif kind == "thinking":
            thinking.append(as_text(part.get("thinking"), "content[].thinking"))
        elif kind == "tool_use":
            name = as_text(part.get("name"), "content[].name")
            calls.append(ToolCall(name, arguments_of({"arguments": part.get("input")}), str(part.get("id"))))
        elif kind != "redacted_thinking":  # encrypted, so that no model here can read it
            raise CallRefusedError("unsupported", f"Unsupported: content of type {kind!r}.", "messages")
    text = "".join(texts)
    return Message("assistant", text, tuple(calls), thinking="".join(thinking), answer=text)


def _user(parts: list[Mapping[str, Any]], notes: Notes) -> list[Message]:
    """Convert the content of a user message. Neighbouring texts are one message, and each tool result is one."""
    found: list[Message] = []
    for kind, group in groupby(parts, key=lambda part: part.get("type") == "tool_result"):
        if not kind:
            found.append(Message("user", _text(list(group), "messages[].content", notes)))
            continue
        for part in group:
            notes.skips(part, _RESULT, "messages[].content[].")
            text = _text(part.get("content"), "content[].content", notes)
            found.append(Message("tool", text, result=ToolResult(text, "", str(part.get("tool_use_id") or ""))))
    return found


def _text(content: object, what: str, notes: Notes) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in as_list(content, what):
        kind = as_object(part, what).get("type")
        source = as_object(part.get("source") or {}, f"{what}.source")
        if kind == "text":
            texts.append(as_text(part.get("text"), what))
        elif kind == "document" and source.get("type") == "text":
            texts.append(as_text(source.get("data"), f"{what}.source.data"))
        elif (instead := unseen_text(kind, notes, what)) is not None:
            texts.append(instead)
        else:
            raise CallRefusedError("unsupported", f"Unsupported: {what} of type {kind!r}; text is.", what)
    return "".join(texts)


# -------------------------------------------------------------------------------------------------------- answers

_SIGNATURE = "agentgym"
"""Signature of thinking blocks. Clients send it back unchanged, and nothing checks it."""


def _blocks(answer: Answer) -> list[tuple[str, Any]]:
    thinking = [("thinking", answer.thinking)] if answer.thinking else []
    text = [("text", answer.text)] if answer.text or not answer.calls else []
    return [*thinking, *text, *(("tool_use", call) for call in answer.calls)]


def _block(kind: str, value: Any) -> dict[str, Any]:
    if kind == "tool_use":
        return {"type": kind, "id": value.id, "name": value.name, "input": dict(value.arguments)}
    signature = {"signature": _SIGNATURE} if kind == "thinking" else {}
    return {"type": kind, kind: value, **signature}


def _empty_block(kind: str, value: Any) -> dict[str, Any]:
    if kind == "tool_use":
        return {"type": kind, "id": value.id, "name": value.name, "input": {}}
    return _block(kind, "")


def _delta(kind: str, value: Any) -> dict[str, Any]:
    if kind == "tool_use":
        return {"type": "input_json_delta", "partial_json": json.dumps(dict(value.arguments), ensure_ascii=False)}
    return {"type": f"{kind}_delta", kind: value}


def _head(answer: Answer, model: str) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.id}", "type": "message", "role": "assistant", "model": model, "stop_sequence": None
    }  # fmt: skip


def _end(answer: Answer) -> dict[str, str | None]:
    if answer.stop and not answer.calls:
        return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop}
    reason = "tool_use" if answer.calls else "max_tokens" if answer.is_cut else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(answer: Answer) -> dict[str, int]:
    return {"input_tokens": answer.num_prompt_tokens, "output_tokens": answer.num_completion_tokens}


def _event(kind: str, **payload: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **payload}, ensure_ascii=False)}\n\n"
