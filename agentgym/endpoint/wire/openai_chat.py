"""OpenAI's Chat Completions API: https://platform.openai.com/docs/api-reference/chat"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from agentgym.canonical import MAX_DEPTH, encodable_json, read_arguments
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
)
from agentgym.endpoint.wire.fields import Fields, Notes, unseen_text
from agentgym.json_schema.validation import shape_problem
from agentgym.types import Message, Observation, ToolCall, ToolResult, ToolSpec

CONSTRAINED: Final = "the policy's text is never constrained"
FIELDS: Final = Fields(
    read=frozenset(
        ("messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "n", "stream", "stream_options",
         "logprobs", "response_format", "stop", "return_token_ids")
    ),
    fixed=frozenset(
        ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty",
         "repetition_penalty", "reasoning_effort", "reasoning", "verbosity", "parallel_tool_calls", "min_tokens",
         "ignore_eos", "chat_template_kwargs")
    ),
    refused={
        "logit_bias": CONSTRAINED,
        "structured_outputs": CONSTRAINED,
        "guided_json": CONSTRAINED,
        "guided_regex": CONSTRAINED,
        "guided_choice": CONSTRAINED,
        "guided_grammar": CONSTRAINED,
        "bad_words": CONSTRAINED,
        "stop_token_ids": "use stop",
        "include_stop_str_in_output": "completions end before the stop text",
        "functions": "use tools",
        "function_call": "use tool_choice",
        "echo": "answers hold the completion only",
        "continue_final_message": "completions begin a new message",
        "chat_template": "the model's own one is used",
        "documents": "put them into the messages",
        "best_of": "each call gets one completion",
        "use_beam_search": "each call gets one completion",
    },
    partly={
        "n": "above 1",
        "response_format": "other than text",
        "tool_choice": "none, or a certain tool",
        "messages": "the assistant's as the last one",
    },
)  # fmt: skip
"""Fields of the API, and of vLLM's additions to it."""
_CONTENT = "messages[].content"
_MESSAGE = frozenset(
    ("role", "content", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "refusal", "annotations",
     "audio", "function_call", "provider_specific_fields", "cache_control")
)  # fmt: skip


def parse(body: Mapping[str, Any]) -> ChatCall:
    """Parse the body of a request.

    Raises:
        CallRefusedError: a field is wrong or not supported; the message names it.
    """
    notes = FIELDS.checked(body)
    if (as_limit(body.get("n"), "n") or 1) > 1:
        raise CallRefusedError("unsupported", "Unsupported: n above 1; each call gets one completion.", "n")
    form = body.get("response_format")
    if form is not None and as_object(form, "response_format").get("type") != "text":
        raise CallRefusedError("unsupported", "Unsupported: response_format other than text.", "response_format")
    check_tool_choice(body.get("tool_choice"), notes)
    options = body.get("stream_options") or {}
    limit = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    messages = [_message(one, notes) for one in as_list(body.get("messages"), "messages")]
    return ChatCall(
        messages=check_conversation(messages),
        tools=read_tools(body.get("tools"), ("function",), notes, "function"),
        max_tokens=as_limit(body.get(limit), limit),
        wants_logprobs=as_flag(body.get("logprobs"), "logprobs"),
        is_stream=as_flag(body.get("stream"), "stream"),
        stops=as_stops(body.get("stop"), "stop"),
        has_usage_event=bool(as_object(options, "stream_options").get("include_usage")),
        wants_token_ids=as_flag(body.get("return_token_ids"), "return_token_ids"),
        overridden=tuple(notes.overridden),
        ignored=tuple(notes.ignored),
    )


def check_tool_choice(choice: object, notes: Notes) -> None:
    """Note a choice that has no effect: the policy itself decides whether to call a tool.

    Raises:
        CallRefusedError: the choice would change the set of tools.
    """
    if choice in (None, "auto"):
        return
    if choice in ("required", "any"):
        notes.overridden.append("tool_choice")
        return
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
    whole = {**_head(answer, model, "chat.completion"), "choices": [choice], "usage": _usage(answer)}
    if answer.prompt_ids:  # vLLM's names
        choice["token_ids"] = list(answer.completion_ids)
        whole["prompt_token_ids"] = list(answer.prompt_ids)
    return whole


def events(answer: Answer, model: str, *, has_usage: bool = False) -> Iterator[str]:
    """Return an answer as the server-sent events of a stream."""
    head = _head(answer, model, "chat.completion.chunk")

    def chunk(delta: Mapping[str, Any], **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": None, **more}
        return _event({**head, "choices": [choice]})

    if answer.prompt_ids:
        head["prompt_token_ids"] = list(answer.prompt_ids)
    yield chunk({"role": "assistant", "content": ""})
    head.pop("prompt_token_ids", None)
    if answer.thinking:
        yield chunk({"reasoning_content": answer.thinking})
    if answer.text:
        yield chunk({"content": answer.text}, logprobs=_logprobs(answer))
    for index, call in enumerate(answer.calls):
        yield chunk({"tool_calls": [{"index": index, **_wire_call(call)}]})
    ids = {"token_ids": list(answer.completion_ids)} if answer.prompt_ids else {}
    yield chunk({}, finish_reason=_finish_reason(answer), **ids)
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
    return _message(message, Notes())


def read_content(content: object, what: str, notes: Notes) -> str:
    """Return the text of a content field, given as a string or as parts.

    A part that the policy cannot see, such as an image, becomes a text that says so.

    Raises:
        CallRefusedError: a part is of another kind.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in as_list(content, what):
        kind = as_object(part, what).get("type")
        if kind in ("text", "input_text", "output_text", "refusal"):
            key = "refusal" if kind == "refusal" else "text"
            texts.append(as_text(part.get(key), f"{what}.{key}"))
        elif (instead := unseen_text(kind, notes, what)) is not None:
            texts.append(instead)
        else:
            raise CallRefusedError("unsupported", f"Unsupported: content of type {kind!r}; text is.", what)
    return "".join(texts)


def arguments_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a tool call in a request."""
    try:
        return cast("Mapping[str, Any]", encodable_json(dict(read_arguments(call, ignores_more=True)), MAX_DEPTH))
    except ValueError as error:
        why = f"arguments of a tool call cannot be read: {error}."
        raise CallRefusedError("invalid", why, "arguments") from error


def _message(given: object, notes: Notes) -> Message:
    message = as_object(given, "messages[]")
    role, text = message.get("role"), read_content(message.get("content"), _CONTENT, notes)
    notes.skips(message, _MESSAGE | ({"name"} if role == "tool" else set()), "messages[].")
    if message.get("function_call"):
        raise CallRefusedError("unsupported", "Unsupported field: messages[].function_call; use tool_calls.", "role")
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
    text = text or str(message.get("refusal") or "")
    thinking = message.get("reasoning_content") or message.get("reasoning") or ""
    return Message("assistant", text, calls, thinking=as_text(thinking, "messages[].reasoning"), answer=text)


def _call(given: object) -> ToolCall:
    call = as_object(given, "tool_calls[]")
    function = as_object(call.get("function"), "tool_calls[].function")
    name = as_text(function.get("name"), "tool_calls[].function.name")
    return ToolCall(name, arguments_of(function), str(call.get("id") or ""))


def read_tools(
    given: object, kinds: Sequence[str | None], notes: Notes, inside: str = "", schema: str = "parameters"
) -> tuple[ToolSpec, ...]:
    """Return the tools that the agent runs itself. Tools of other types run at the API's owner; they are skipped.

    Args:
        kinds: types of tools that the agent runs.
        inside: key of a tool under which its name and schema are; empty if they are in the tool itself.
        schema: key of its schema.
    """
    found = []
    for one in as_list(given or [], "tools"):
        tool = as_object(one, "tools[]")
        if (kind := tool.get("type")) not in kinds:
            notes.ignore(f"tools[] of type {kind}")
        else:
            found.append(read_function(as_object(tool.get(inside), f"tools[].{inside}") if inside else tool, schema))
    return tuple(found)


def read_function(function: Mapping[str, Any], schema: str = "parameters") -> ToolSpec:
    """Return a tool made of its name, description and schema."""
    name = as_text(function.get("name"), "tools[].name")
    parameters = as_object(function.get(schema) or {"type": "object", "properties": {}}, f"tools[].{schema}")
    if problem := shape_problem(parameters):
        raise CallRefusedError("invalid", f"tools[].{schema}: {problem}.", f"tools[].{schema}")
    return ToolSpec(name, str(function.get("description") or ""), parameters)


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
