"""A request to the policy endpoint and its answer, independent of the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any, Literal

from agentgym.errors import AgentGymError
from agentgym.types import Message, Observation, ToolCall, ToolSpec

Reason = Literal["invalid", "unsupported", "too_long", "limit", "unknown_session", "engine", "over"]


class CallRefusedError(AgentGymError):
    """An error for a request that gets no completion. The gateway formats it for the API that was called.

    Args:
        reason: kind of error, which decides the HTTP status and the API's error type.
        field: name of the faulty field; empty if there is none.
    """

    def __init__(self, reason: Reason, message: str, field: str = "") -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.field = field

    @property
    def http_status(self) -> int:
        """HTTP status of the response."""
        return {"unknown_session": 404, "engine": 503, "limit": 403, "over": 403}.get(self.reason, 400)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A request for one completion.

    Tool results hold the call ids that the endpoint has issued, and neighbouring results have the order of their calls.
    """

    messages: Observation
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    """Longest completion that the agent requests; the run's own limit applies, too."""
    wants_logprobs: bool = False
    is_stream: bool = False
    has_usage_event: bool = False
    """True if the agent requests token counts at the end of the stream."""
    stops: tuple[str, ...] = ()
    """Stop texts. The completion ends before the first one and does not contain it."""
    overridden: tuple[str, ...] = ()
    """Fields of the request that the run overrides, such as the temperature."""
    ignored: tuple[str, ...] = ()
    """Fields and tools of the request that are ignored, since they do not change the policy's text."""
    wants_token_ids: bool = False


@dataclass(frozen=True, slots=True)
class AnswerToken:
    """A sampled token as the agent sees it."""

    text: str
    logprob: float
    raw: bytes | None
    """Its own bytes, which may be a part of a character; None if they are unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A completion as the agent sees it."""

    id: str
    """Unique id in the gateway, without the prefix of an API."""
    text: str
    """Text besides thinking and calls. It includes malformed calls as they were sampled."""
    thinking: str
    calls: tuple[ToolCall, ...]
    """Well-formed calls, with ids of the endpoint."""
    is_cut: bool
    """True if the token limit ended the completion."""
    stop: str = ""
    """Stop text that ended the completion; empty if none did."""
    num_prompt_tokens: int
    num_completion_tokens: int
    tokens: tuple[AnswerToken, ...] = ()
    """The sampled tokens, if the agent requested their log-probabilities."""
    prompt_ids: tuple[int, ...] = ()
    """Token ids of the prompt, if the agent requested them."""
    completion_ids: tuple[int, ...] = ()
    """Token ids of the completion as sampled, if the agent requested them."""


def as_object(value: object, what: str) -> Mapping[str, Any]:
    """Return a JSON object unchanged; raise an error that names the field for any other value."""
    if not isinstance(value, Mapping):
        raise CallRefusedError("invalid", f"{what} must be an object, got {type(value).__name__}.", what)
    return value


def as_list(value: object, what: str) -> list[Any]:
    """Return a JSON list unchanged; raise an error that names the field for any other value."""
    if not isinstance(value, list):
        raise CallRefusedError("invalid", f"{what} must be a list, got {type(value).__name__}.", what)
    return value


def as_text(value: object, what: str) -> str:
    """Return a JSON string unchanged; raise an error that names the field for any other value."""
    if not isinstance(value, str):
        raise CallRefusedError("invalid", f"{what} must be a string, got {type(value).__name__}.", what)
    return value


def as_flag(value: object, what: str) -> bool:
    """Return a JSON boolean, False for none; raise an error that names the field for any other value."""
    if value is not None and not isinstance(value, bool):
        raise CallRefusedError("invalid", f"{what} must be true or false, got {value!r}.", what)
    return bool(value)


def as_limit(value: object, what: str) -> int | None:
    """Return a token limit, or None if there is none."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CallRefusedError("invalid", f"{what} must be a whole number above 0, got {value!r}.", what)
    return value


def as_stops(value: object, what: str) -> tuple[str, ...]:
    """Return the stop texts, given as a string or a list of strings."""
    if value is None:
        return ()
    stops = tuple(as_text(one, what) for one in ([value] if isinstance(value, str) else as_list(value, what)))
    if "" in stops:
        raise CallRefusedError("invalid", f"{what} must hold texts that are not empty.", what)
    return stops


def check_conversation(messages: list[Message], *, is_counted: bool = False) -> Observation:
    """Return the messages of a request after checking that a completion can follow them.

    Neighbouring tool results are put in the order of their calls, by which most templates match them. Results without
    an id answer malformed calls and keep their place. If results answer calls of several neighbouring assistant
    messages, these messages become one: APIs send the text and the calls of one turn as separate items.

    Args:
        is_counted: the request asks for the number of tokens only, so that the assistant's message may be the last.

    Raises:
        CallRefusedError: there are no messages, the last one is the assistant's (a prefilled answer), or a tool result
            answers no call of the last assistant message before it.
    """
    if not messages:
        raise CallRefusedError("invalid", "messages must hold at least one message.", "messages")
    if messages[-1].role == "assistant" and not is_counted:
        raise CallRefusedError("unsupported", "Unsupported: the last message is the assistant's.", "messages")
    found: list[Message] = []
    call_ids: list[str] = []
    num_read = 0
    for role, group in groupby(messages, key=lambda message: message.role):
        run = list(group)
        if role == "tool":
            if num_parts := _num_answered(found, messages[num_read:]):
                found[-num_parts:] = [joined(found[-num_parts:])]
                call_ids = _call_ids(found[-1])
            run = _in_order_of(call_ids, run)
        elif role == "assistant":
            call_ids = _call_ids(run[-1])
        num_read += len(run)
        found += run
    return tuple(found)


def joined(parts: Sequence[Message]) -> Message:
    """Return neighbouring assistant messages as one: their texts, then their calls."""
    text = "\n\n".join(part.text for part in parts if part.text)
    thinking = "\n\n".join(part.thinking for part in parts if part.thinking)
    calls = tuple(call for part in parts for call in part.calls)
    return Message("assistant", text, calls, thinking=thinking, answer=text)


def _call_ids(message: Message) -> list[str]:
    return [call.id for call in message.calls if isinstance(call, ToolCall)]


def _num_answered(before: Sequence[Message], after: Sequence[Message]) -> int:
    """Return the number of neighbouring assistant messages at the end of a conversation, from the first one with a
    call that the next results answer; 0 if no more than the last one is answered.
    """
    replies = takewhile(lambda one: one.role != "assistant", after)
    wanted = {message.result.call_id for message in replies if message.result}
    num_parts = 0
    for number, message in enumerate(takewhile(lambda one: one.role == "assistant", reversed(before)), 1):
        if wanted.intersection(_call_ids(message)):
            num_parts = number
    return num_parts if num_parts > 1 else 0


def _in_order_of(call_ids: list[str], results: list[Message]) -> list[Message]:
    """Return results in the order of their calls, and blank the ids that they answer."""
    ids = [message.result.call_id if message.result else "" for message in results]
    places = [place for place, id in enumerate(ids) if id]
    numbers = []
    for place in places:
        if ids[place] not in call_ids:
            raise CallRefusedError(
                "invalid",
                f"The tool result with the id {ids[place]!r} must follow an assistant message that holds its call, and "
                "a call has one result.",
                "messages",
            )
        numbers.append(call_ids.index(ids[place]))
        call_ids[numbers[-1]] = ""
    ordered = list(results)
    for place, (_, source) in zip(places, sorted(zip(numbers, places, strict=True)), strict=True):
        ordered[place] = results[source]
    return ordered
