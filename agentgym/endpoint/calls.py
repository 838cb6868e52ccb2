"""A request to the policy endpoint and its answer, independent of the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from agentgym.errors import AgentGymError
from agentgym.types import Message, Observation, ToolCall, ToolSpec

Reason = Literal["invalid", "unsupported", "too_long", "limit", "unknown_session", "engine", "over"]


_NUMBERS = frozenset(("temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty"))
"""Fields of a request that are numbers in every API."""
_NEVER_NEGATIVE = frozenset(("temperature", "top_p"))


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


def refuse_unknown(body: Mapping[str, Any], known: frozenset[str], where: str = "") -> None:
    """Raise an error for fields that are set but not supported.

    Raises:
        CallRefusedError: there is such a field; the message names the first one.
    """
    for name, value in body.items():
        if name not in known and value is not None:
            raise CallRefusedError("unsupported", f"Unsupported field: {where}{name}.", f"{where}{name}")


def overridden_in(body: Mapping[str, Any], fixed: frozenset[str]) -> tuple[str, ...]:
    """Return the names of fields in a request that the run overrides.

    Raises:
        CallRefusedError: one of them is no number, or a negative one, and must not be.
    """
    for name in _NUMBERS & fixed:
        value = body.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise CallRefusedError("invalid", f"{name} must be a number, got {value!r}.", name)
        if value is not None and name in _NEVER_NEGATIVE and value < 0:
            raise CallRefusedError("invalid", f"{name} must be at least 0, got {value!r}.", name)
    return tuple(sorted(name for name in body if name in fixed and body[name] is not None))


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


def check_conversation(messages: list[Message]) -> Observation:
    """Return the messages of a request after checking that a completion can follow them.

    Neighbouring tool results are put in the order of their calls, by which most templates match them. Results without
    an id answer malformed calls and keep their place.

    Raises:
        CallRefusedError: there are no messages, the last one is the assistant's (a prefilled answer), or a tool result
            answers no call of the last assistant message before it.
    """
    if not messages:
        raise CallRefusedError("invalid", "messages must hold at least one message.", "messages")
    if messages[-1].role == "assistant":
        raise CallRefusedError("unsupported", "Unsupported: the last message is the assistant's.", "messages")
    found: list[Message] = []
    call_ids: list[str] = []
    for role, group in groupby(messages, key=lambda message: message.role):
        run = list(group)
        if role == "assistant":
            call_ids = [call.id for call in run[-1].calls if isinstance(call, ToolCall)]
        elif role == "tool":
            run = _in_order_of(call_ids, run)
        found += run
    return tuple(found)


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
