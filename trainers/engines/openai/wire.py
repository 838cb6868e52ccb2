"""Conversion between agentgym's messages and OpenAI's chat completions.

The server renders the conversation and parses the calls, and returns no token ids, so its answers cannot be trained on.
Source: OpenAI's API reference, "Create chat completion"; vLLM, SGLang, llama.cpp and others use the same format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Literal, Required, TypeAlias, TypedDict, cast

from agentgym.canonical import encodable, read_arguments, require_writable
from agentgym.errors import EngineError
from agentgym.spending import usage_of
from agentgym.types import (
    EMPTY_COMPLETION,
    Call,
    Completion,
    FinishReason,
    ImagePart,
    Json,
    JsonObject,
    MalformedCall,
    Message,
    Observation,
    ToolCall,
    Usage,
)

_NO_ANSWER: Final = "(no answer)"
_RESULT_ID: Final = "result"
"""Beginning of the ids of results of calls that the server has not seen."""
_SHORT: Final = "Hello"
_MAX_SHOWN: Final = 300
_FEEDBACK: Final = ("promptFeedback", "prompt_feedback", "prompt_filter_results")
"""Fields in which Gemini, proxies of it, and Azure say why a prompt got no answer."""
_ENDS: Final = {"length": FinishReason.LENGTH}
"""Finish reasons other than a normal end. A content filter is part of the endpoint's policy, so it is a normal end."""


class WireFunction(TypedDict):
    """The function of a call; its arguments are JSON as text."""

    name: str
    arguments: str


class WireCall(TypedDict):
    """A call of an assistant's message."""

    id: str
    type: Literal["function"]
    function: WireFunction


Content: TypeAlias = "str | Sequence[JsonObject]"
"""A text, or parts that are text or an image."""


class WireMessage(TypedDict, total=False):
    """A message of a conversation in the server's format."""

    role: Required[str]
    content: Required[Content]
    tool_calls: list[WireCall]
    tool_call_id: str


@dataclass(frozen=True, slots=True)
class Said:
    """A server's answer: the action, and the message as the next request repeats it."""

    action: Message
    wire: WireMessage
    completion: Completion
    """Completion without token ids; it has the finish reason."""
    usage: Usage | None


class WireConversation:
    """An episode's messages in the server's format.

    Every call of an assistant message is followed by exactly one tool message, which servers require.

    Args:
        keeps_results: tool results stay tool messages where the server has seen no call, since calls are read here.

    Example:
        >>> talk = WireConversation((Message("user", "Guess."),))
        >>> talk.add_replies((Message("user", "Well?"),))
        >>> [row["content"] for row in talk.messages]
        ['Guess.', 'Well?']
    """

    def __init__(self, observation: Observation, *, keeps_results: bool = False) -> None:
        self.messages: list[WireMessage] = []
        self._keeps_results = keeps_results
        self._open_ids: list[str] = []
        self.add_replies(observation)

    def add_action(self, wire: WireMessage) -> None:
        """Add the policy's message, as :func:`read_answer` returns it."""
        self.messages.append(wire)
        self._open_ids = [call["id"] for call in wire.get("tool_calls", ())]

    def replace_action(self, played: Message) -> None:
        """Replace the policy's last action; the calls of the new action get new ids."""
        self.messages.pop()
        self.add_action(_as_said(played, len(self.messages)))

    def add_replies(self, replies: Observation) -> None:
        """Add the environment's messages: results of the open calls first, then the others."""
        rest: list[WireMessage] = []
        for message in replies:
            if message.role == "tool" and self._open_ids:
                self.messages.append(
                    {"role": "tool", "tool_call_id": self._answered_id(message), "content": message.text}
                )
                images = _images(message)
                rest += [{"role": "user", "content": images}] if images else []
            elif message.role == "tool" and self._keeps_results:
                rest.append(
                    {
                        "role": "tool",
                        "tool_call_id": f"{_RESULT_ID}{len(self.messages) + len(rest)}",
                        "content": message.text,
                    }
                )
            else:
                rest.append(_as_wire(message))
        for call_id in self._open_ids:
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": _NO_ANSWER})
        self._open_ids = []
        self.messages += rest

    def _answered_id(self, message: Message) -> str:
        """Return the id of the call that a result names, or of the next open call if it could not be parsed."""
        named = message.result.call_id if message.result is not None else ""
        return self._open_ids.pop(self._open_ids.index(named) if named in self._open_ids else 0)


def cards_in(answer: Json) -> dict[str, Json]:
    """Return the models in an answer to ``/models`` by name, with what the server says of each."""
    cards = answer.get("data") if isinstance(answer, Mapping) else None
    listed = cards if isinstance(cards, list) else []
    return {str(card["id"]): card for card in listed if isinstance(card, Mapping) and "id" in card}


def read_answer(answer: Any, num_before: int) -> Said:
    """Parse the assistant's message in a server's answer.

    A call whose arguments are not a JSON object becomes a :class:`~agentgym.types.MalformedCall`, because it is the
    policy's error. Its ``span`` is within the arguments. Later requests show it as a call with one argument
    ``unreadable``, because servers parse the arguments of earlier calls and fail on invalid ones.

    Args:
        answer: the decoded body.
        num_before: number of earlier messages, from which ids of calls without an id are made.

    Raises:
        EngineError: the answer is not a completion.

    Example:
        >>> call = {"id": "a", "type": "function", "function": {"name": "guess", "arguments": '{"number": 3}'}}
        >>> said = read_answer({"choices": [{"message": {"content": None, "tool_calls": [call]}}]}, 1)
        >>> said.action.calls
        (ToolCall(name='guess', arguments={'number': 3}, id='a'),)
    """
    try:
        choice = choice_of(answer)
        message = choice["message"]
        listed = [call["function"] for call in message.get("tool_calls") or ()]
        named = [call.get("id") for call in message.get("tool_calls") or ()]
    except (KeyError, IndexError, TypeError, AttributeError):
        raise EngineError(f"it answered no completion: {shown(answer)}") from None
    text, thought = _read_content(message)
    read: list[tuple[Call, WireCall]] = []
    for at, function in enumerate(listed):
        if not isinstance(function, Mapping):
            raise EngineError(f"it answered a call without a function: {shown(answer)}")
        own = named[at]
        is_new = isinstance(own, str) and own and own not in named[:at]
        read.append(_read_call(function, encodable(own) if is_new else f"call_{num_before}_{at}"))
    # some servers refuse a later request with an empty message
    row: WireMessage = {"role": "assistant", "content": text if text.strip() or read else _NO_ANSWER}
    if read:
        row["tool_calls"] = [wire for _, wire in read]
    end = _ENDS.get(str(choice.get("finish_reason")), FinishReason.STOP)
    model = answer.get("model")
    return Said(
        action=Message("assistant", text, tuple(call for call, _ in read), thinking=thought, answer=text),
        wire=row,
        completion=replace(
            EMPTY_COMPLETION, finish_reason=end, model=encodable(model) if isinstance(model, str) else ""
        ),
        usage=usage_of(answer),
    )


def choice_of(answer: Any) -> Mapping[str, Any]:
    """Return the first choice of an answer; its message is empty if the server gives an end without one.

    Filters end an answer so, in many words (``content_filter``, ``PROHIBITED_CONTENT``, ``SAFETY``), and some give no
    choice at all but feedback on the prompt.

    Raises:
        LookupError, TypeError, AttributeError: there is no choice.

    Example:
        >>> choice_of({"choices": [{"message": None, "finish_reason": "SAFETY"}]})["message"]
        {}
    """
    choices = answer.get("choices")
    if not choices and any(answer.get(name) for name in _FEEDBACK):
        return {"message": {}, "finish_reason": "content_filter"}
    choice: Mapping[str, Any] = choices[0]
    is_ended = isinstance(choice.get("finish_reason"), str)
    return {**choice, "message": {}} if is_ended and choice.get("message") is None else choice


def forms_of(request: Mapping[str, object]) -> frozenset[object]:
    """Return the form of a request: its parameters, its kinds of messages and their order, but not their texts.

    A request all of whose forms a server has accepted before is refused for its texts.

    Example:
        >>> one = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
        >>> forms_of(one) == forms_of({"model": "m", "messages": [{"role": "user", "content": "Hello, you."}]})
        True
    """
    messages = cast("Sequence[WireMessage]", request["messages"])
    kinds = [_kind_of(message) for message in messages]
    roles = [message["role"] for message in messages]
    return frozenset([*request, *kinds, *pairwise([*roles, "assistant"])])


def _kind_of(message: WireMessage) -> tuple[str, frozenset[object], bool]:
    content = message["content"] if message["role"] != "assistant" else ""  # its text may be empty
    parts = [bool(content)] if isinstance(content, str) else [part["type"] for part in content]
    return message["role"], frozenset(parts), bool(message.get("tool_calls"))


def with_short_texts(message: WireMessage) -> WireMessage:
    """Return a message of the same form whose texts and arguments are short.

    Example:
        >>> with_short_texts({"role": "user", "content": "A very long text ..."})
        {'role': 'user', 'content': 'Hello'}
    """
    content = message["content"]
    short: Content = (
        content and _SHORT
        if isinstance(content, str)
        else [part if "text" not in part else {**part, "text": _SHORT} for part in content]
    )
    made: WireMessage = {**message, "content": short}
    if calls := message.get("tool_calls"):
        made["tool_calls"] = [{**call, "function": {**call["function"], "arguments": "{}"}} for call in calls]
    return made


def shown(value: object) -> str:
    """Return a value for an error message, shortened."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def _as_said(action: Message, num_before: int) -> WireMessage:
    """Return an action as an assistant message in the server's format."""
    calls: list[WireCall] = [
        {
            "id": f"call_{num_before}_{at}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
        }
        for at, call in enumerate(action.calls)
        if isinstance(call, ToolCall)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls} if calls else _as_wire(action)


def _read_call(function: JsonObject, call_id: str) -> tuple[Call, WireCall]:
    name, raw = function.get("name"), function.get("arguments")
    name = encodable(name) if isinstance(name, str) else name
    text = encodable(raw) if isinstance(raw, str) else json.dumps(raw if raw is not None else {})
    call = _parse_call(name, text, call_id)
    arguments = text.strip() or "{}" if isinstance(call, ToolCall) else json.dumps({"unreadable": text})
    sent: WireFunction = {"name": name if isinstance(name, str) and name else "unknown", "arguments": arguments}
    return call, {"id": call_id, "type": "function", "function": sent}


def _parse_call(name: Json, text: str, call_id: str) -> Call:
    span = (0, len(text))
    if not isinstance(name, str) or not name:
        return MalformedCall(span, "expected a tool name", text)
    try:
        arguments = dict(read_arguments({"arguments": text}))
        require_writable(arguments)
    except ValueError as error:
        return MalformedCall(span, f"the arguments of {name} cannot be read: {error}", text)
    return ToolCall(name, arguments, call_id)


def _read_content(message: JsonObject) -> tuple[str, str]:
    """Return the text and the thinking of a message, whose content may be a list of parts.

    Raises:
        EngineError: the content is neither text nor parts of text, refusals and thinking.
    """
    keys = ("reasoning_content", "reasoning")  # vLLM, SGLang and others
    thinking = next((said for key in keys if isinstance(said := message.get(key), str)), "")
    content: object = message.get("content")
    if isinstance(content, list):
        parts = [_part_text(part) for part in content]
        text = "".join(part for kind, part in parts if kind == "text")
        thinking = thinking or "".join(part for kind, part in parts if kind == "thinking")
    elif content is None or isinstance(content, str):
        text = content or ""
    else:
        raise EngineError(f"it answered content that is no text: {shown(content)}")
    refusal = message.get("refusal")
    return encodable(text or (refusal if isinstance(refusal, str) else "")), encodable(thinking)


def _part_text(part: object) -> tuple[str, str]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    said = part.get(str(kind)) if isinstance(part, Mapping) else None
    if kind == "thinking" and isinstance(said, list):  # Mistral's
        return "thinking", "".join(_part_text(one)[1] for one in said)
    if kind not in ("text", "refusal", "thinking") or not isinstance(said, str):
        raise EngineError(f"it answered a part of content that is no text: {shown(part)}")
    return "thinking" if kind == "thinking" else "text", said


def _as_wire(message: Message) -> WireMessage:
    role = message.role if message.role != "tool" else "user"  # nobody called for it
    if isinstance(message.content, str) or not _images(message):
        return {"role": role, "content": message.text}
    parts: list[JsonObject] = [
        _image(part) if isinstance(part, ImagePart) else {"type": "text", "text": part.text} for part in message.content
    ]
    return {"role": role, "content": parts}


def _images(message: Message) -> list[JsonObject]:
    if isinstance(message.content, str):
        return []
    return [_image(part) for part in message.content if isinstance(part, ImagePart)]


def _image(part: ImagePart) -> JsonObject:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{part.png_base64}"}}
