"""OpenAI's Chat Completions API: https://platform.openai.com/docs/api-reference/chat"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from agentgym.canonical import MAX_DEPTH, encodable_json, read_json
from agentgym.endpoint.calls import (
    Answer,
    AnswerToken,
    CallRefusedError,
    ChatCall,
    as_flag,
    as_limit,
    as_list,
    as_object,
    as_stops,
    as_text,
    check_conversation,
    overridden_in,
    refuse_unknown,
)
from agentgym.types import Message, Observation, ToolCall, ToolResult, ToolSpec

FIXED: Final = frozenset(
    ("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "reasoning_effort", "parallel_tool_calls")
)
"""Fields that the run overrides; agents may send them."""
IGNORED: Final = frozenset(
    ("model", "user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier")
)
"""Fields that do not affect sampling."""
_READ = frozenset(
    ("messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "n", "stream", "stream_options",
     "logprobs", "top_logprobs", "response_format", "stop")
)  # fmt: skip
_CONTENT = "messages[].content"
_MESSAGE = frozenset(
    ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "refusal", "annotations", "audio",
     "function_call", "provider_specific_fields")
)  # fmt: skip


def parse(body: Mapping[str, Any]) -> ChatCall:
    """Parse the body of a request.

    Raises:
        CallRefusedError: a field is wrong or not supported; the message names it.
    """
    refuse_unknown(body, _READ | FIXED | IGNORED)
    if (as_limit(body.get("n"), "n") or 1) > 1:
        raise CallRefusedError("unsupported", "Unsupported: n above 1; each call gets one completion.", "n")
    if body.get("top_logprobs"):
        raise CallRefusedError(
            "unsupported", "Unsupported: top_logprobs; logprobs of sampled tokens are.", "top_logprobs"
        )
    form = body.get("response_format")
    if form is not None and as_object(form, "response_format").get("type") != "text":
        raise CallRefusedError("unsupported", "Unsupported: response_format other than text.", "response_format")
    forced = check_tool_choice(body.get("tool_choice"))
    options = body.get("stream_options") or {}
    limit = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    return ChatCall(
        messages=check_conversation([_message(one) for one in as_list(body.get("messages"), "messages")]),
        tools=tuple(_tool(one) for one in as_list(body.get("tools") or [], "tools")),
        max_tokens=as_limit(body.get(limit), limit),
        wants_logprobs=as_flag(body.get("logprobs"), "logprobs"),
        is_stream=as_flag(body.get("stream"), "stream"),
        stops=as_stops(body.get("stop"), "stop"),
        has_usage_event=bool(as_object(options, "stream_options").get("include_usage")),
        overridden=(*overridden_in(body, FIXED), *forced),
    )


def check_tool_choice(choice: object) -> tuple[str, ...]:
    """Return the overridden fields: the policy itself decides whether to call a tool.

    Raises:
        CallRefusedError: the choice would change the set of tools.
    """
    if choice in (None, "auto"):
        return ()
    if choice in ("required", "any"):
        return ("tool_choice",)
    raise CallRefusedError("unsupported", f"Unsupported: tool_choice {choice!r}; use auto.", "tool_choice")


def response(answer: Answer, model: str) -> dict[str, Any]:
    """Return an answer as a ``chat.completion``."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None, "refusal": None}
    if answer.thinking:
        message["reasoning_content"] = answer.thinking
    if answer.calls:
        message["tool_calls"] = [_wire_call(call) for call in answer.calls]
    choice = {
        "index": 0, "message": message, "finish_reason": _finish_reason(answer), "logprobs": _logprobs(answer)
    }  # fmt: skip
    return {**_head(answer, model, "chat.completion"), "choices": [choice], "usage": _usage(answer)}


def events(answer: Answer, model: str, *, has_usage: bool = False) -> Iterator[str]:
    """Return an answer as the server-sent events of a stream."""
    head = _head(answer, model, "chat.completion.chunk")

    def chunk(delta: Mapping[str, Any], **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": None, **more}
        return _event({**head, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    if answer.thinking:
        yield chunk({"reasoning_content": answer.thinking})
    if answer.text:
        yield chunk({"content": answer.text}, logprobs=_logprobs(answer))
    for index, call in enumerate(answer.calls):
        yield chunk({"tool_calls": [{"index": index, **_wire_call(call)}]})
    yield chunk({}, finish_reason=_finish_reason(answer))
    if has_usage:
        yield _event({**head, "choices": [], "usage": _usage(answer)})
    yield "data: [DONE]\n\n"


def error(refused: CallRefusedError) -> dict[str, Any]:
    """Return an error in the API's format."""
    codes = {"too_long": "context_length_exceeded", "unsupported": "unsupported_value", "limit": "call_limit"}
    kind = "server_error" if refused.http_status >= 500 else "invalid_request_error"
    code = codes.get(refused.reason, refused.reason)
    return {"error": {"message": str(refused), "type": kind, "param": refused.field or None, "code": code}}


def as_wire(messages: Observation) -> list[dict[str, Any]]:
    """Convert an environment's messages to messages of the API; call ids stay the same."""
    return [
        {"role": "tool", "tool_call_id": one.result.call_id, "content": one.text}
        if one.role == "tool" and one.result is not None
        else {"role": one.role, "content": one.text}
        for one in messages
    ]


def read_said(message: Mapping[str, Any]) -> Message:
    """Parse an assistant message of the API; errors are those of :func:`parse`."""
    return _message(message)


def read_content(content: object, what: str) -> str:
    """Return the text of a content field, given as a string or as text parts; raise an error for other parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in as_list(content, what):
        kind = as_object(part, what).get("type")
        if kind not in ("text", "input_text", "output_text"):
            raise CallRefusedError("unsupported", f"Unsupported: content of type {kind!r}; text is.", what)
        texts.append(as_text(part.get("text"), f"{what}.text"))
    return "".join(texts)


def read_arguments(text: object) -> Mapping[str, Any]:
    """Return the arguments of a tool call, which requests hold as JSON text."""
    try:
        read = encodable_json(read_json(as_text(text, "arguments") or "{}"), MAX_DEPTH)
    except ValueError as error:
        raise CallRefusedError(
            "invalid", f"arguments of a tool call cannot be read as JSON: {error}.", "arguments"
        ) from error
    return as_object(read, "arguments")


def _message(given: object) -> Message:
    message = as_object(given, "messages[]")
    refuse_unknown(message, _MESSAGE, "messages[].")
    role, text = message.get("role"), read_content(message.get("content"), _CONTENT)
    if role in ("system", "developer", "user", "tool") and message.get("content") is None:
        raise CallRefusedError("invalid", f"A {role} message has no content; it is text or a list of parts.", _CONTENT)
    if role in ("system", "developer"):
        return Message("system", text)
    if role == "user":
        return Message("user", text)
    if role == "tool":
        call_id = as_text(message.get("tool_call_id"), "messages[].tool_call_id")
        return Message("tool", text, result=ToolResult(text, str(message.get("name") or ""), call_id))
    if role != "assistant":
        raise CallRefusedError("invalid", f"Unknown role {role!r}; expected system, user, assistant or tool.", "role")
    calls = tuple(_call(one) for one in as_list(message.get("tool_calls") or [], "messages[].tool_calls"))
    return Message("assistant", text, calls, thinking=str(message.get("reasoning_content") or ""), answer=text)


def _call(given: object) -> ToolCall:
    call = as_object(given, "tool_calls[]")
    function = as_object(call.get("function"), "tool_calls[].function")
    name = as_text(function.get("name"), "tool_calls[].function.name")
    return ToolCall(name, read_arguments(function.get("arguments")), str(call.get("id") or ""))


def _tool(given: object) -> ToolSpec:
    tool = as_object(given, "tools[]")
    if tool.get("type") != "function":
        raise CallRefusedError("unsupported", f"Unsupported: a tool of type {tool.get('type')!r}.", "tools")
    return read_function(as_object(tool.get("function"), "tools[].function"))


def read_function(function: Mapping[str, Any], schema: str = "parameters") -> ToolSpec:
    """Return a tool made of its name, description and schema."""
    name = as_text(function.get("name"), "tools[].name")
    parameters = as_object(function.get(schema) or {"type": "object", "properties": {}}, f"tools[].{schema}")
    _check_schema(parameters, f"tools[].{schema}")
    return ToolSpec(name, str(function.get("description") or ""), parameters)


def _check_schema(schema: Mapping[str, Any], what: str) -> None:
    """Raise an error if a field of a JSON schema that describes the tool to the model has a wrong type."""
    for key in as_list(schema.get("required", []), f"{what}.required"):
        as_text(key, f"{what}.required[]")
    for key, value in as_object(schema.get("properties", {}), f"{what}.properties").items():
        where = f"{what}.properties.{key}"
        argument = as_object({} if isinstance(value, bool) else value, where)
        as_list(argument.get("enum", []), f"{where}.enum")
        kind = argument.get("type", "any")
        for one in as_list([kind] if isinstance(kind, str) else kind, f"{where}.type"):
            as_text(one, f"{where}.type[]")


def _wire_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
    return {"id": call.id, "type": "function", "function": function}


def _finish_reason(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "length" if answer.is_cut else "stop"


def _logprobs(answer: Answer) -> dict[str, Any] | None:
    if not answer.tokens:
        return None
    return {"content": logprob_rows(answer.tokens), "refusal": None}


def logprob_rows(tokens: Sequence[AnswerToken]) -> list[dict[str, Any]]:
    """Return the log-probabilities of sampled tokens in the format of both OpenAI APIs."""
    return [
        {
            "token": one.text,
            "logprob": one.logprob,
            "bytes": None if one.raw is None else list(one.raw),
            "top_logprobs": [],
        }
        for one in tokens
    ]


def _head(answer: Answer, model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": int(time.time()), "model": model}


def _usage(answer: Answer) -> dict[str, int]:
    prompt, completion = answer.num_prompt_tokens, answer.num_completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _event(payload: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(payload, ensure_ascii=False)}\n\n"
