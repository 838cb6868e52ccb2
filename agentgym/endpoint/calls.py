"""One request to the policy endpoint and its answer, whatever API they were written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agentgym.errors import AgentGymError
from agentgym.types import Message, Observation, ToolCall, ToolSpec

Reason = Literal["invalid", "unsupported", "too_long", "limit", "unknown_session", "engine", "over"]


class CallRefusedError(AgentGymError):
    """A request that gets no completion. The gateway writes it in the form of the API that was called.

    Args:
        reason: decides the HTTP status and the API's error type.
        field: name of the field at fault, empty if there is none.
    """

    def __init__(self, reason: Reason, message: str, field: str = "") -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.field = field

    @property
    def http_status(self) -> int:
        """HTTP status of the answer."""
        return {"unknown_session": 404, "engine": 503, "limit": 403, "over": 403}.get(self.reason, 400)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A request for one completion. Tool results hold the call ids that the endpoint gave out."""

    messages: Observation
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    """Longest completion that the agent wants; the run's own limit holds as well."""
    wants_logprobs: bool = False
    is_stream: bool = False
    has_usage_event: bool = False
    """The agent wants token counts at the end of the stream."""
    stops: tuple[str, ...] = ()
    """Texts that end the completion; it is returned without them."""
    overridden: tuple[str, ...] = ()
    """Fields that the run decides, such as the temperature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A completion as the agent sees it."""

    id: str
    """Unique in the gateway, without a prefix of any API."""
    text: str
    """What the policy said beside thinking and calls; malformed calls stay in it as they were sampled."""
    thinking: str
    calls: tuple[ToolCall, ...]
    """Well-formed calls, with ids of the endpoint."""
    is_cut: bool
    """True if the token limit ended it."""
    stop: str = ""
    """The stop text that ended it, empty if none did."""
    num_prompt_tokens: int
    num_completion_tokens: int
    tokens: tuple[tuple[str, float], ...] = ()
    """Text and log-probability of each sampled token, where they were asked for."""


def refuse_unknown(body: Mapping[str, Any], known: frozenset[str], where: str = "") -> None:
    """Refuse fields that have a value and no meaning here.

    Raises:
        CallRefusedError: naming the first of them.
    """
    for name, value in body.items():
        if name not in known and value is not None:
            raise CallRefusedError("unsupported", f"Unsupported field: {where}{name}.", f"{where}{name}")


def overridden_in(body: Mapping[str, Any], fixed: frozenset[str]) -> tuple[str, ...]:
    """Return the names of fields in a request that the run decides."""
    return tuple(sorted(name for name in body if name in fixed and body[name] is not None))


def as_object(value: object, what: str) -> Mapping[str, Any]:
    """Return a JSON object as it is; refuse another value by name."""
    if not isinstance(value, Mapping):
        raise CallRefusedError("invalid", f"{what} must be an object, got {type(value).__name__}.", what)
    return value


def as_list(value: object, what: str) -> list[Any]:
    """Return a JSON list as it is; refuse another value by name."""
    if not isinstance(value, list):
        raise CallRefusedError("invalid", f"{what} must be a list, got {type(value).__name__}.", what)
    return value


def as_text(value: object, what: str) -> str:
    """Return a JSON string as it is; refuse another value by name."""
    if not isinstance(value, str):
        raise CallRefusedError("invalid", f"{what} must be a string, got {type(value).__name__}.", what)
    return value


def as_limit(value: object, what: str) -> int | None:
    """Return a limit of tokens, None if there is none."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CallRefusedError("invalid", f"{what} must be a whole number above 0, got {value!r}.", what)
    return value


def as_stops(value: object, what: str) -> tuple[str, ...]:
    """Return stop texts: one string, or a list of them."""
    if value is None:
        return ()
    stops = tuple(as_text(one, what) for one in ([value] if isinstance(value, str) else as_list(value, what)))
    if "" in stops:
        raise CallRefusedError("invalid", f"{what} must hold texts that are not empty.", what)
    return stops


def check_conversation(messages: list[Message]) -> Observation:
    """Return the messages of a request; refuse those that cannot be continued.

    Raises:
        CallRefusedError: there are none, or the last one is the assistant's (a prefilled answer).
    """
    if not messages:
        raise CallRefusedError("invalid", "messages must hold at least one message.", "messages")
    if messages[-1].role == "assistant":
        raise CallRefusedError("unsupported", "Unsupported: the last message is the assistant's.", "messages")
    return tuple(messages)
