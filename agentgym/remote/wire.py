"""Messages between an environment server and its clients: dataclasses encoded as JSON.

A frame is a list of requests or of replies. A request is ``{"id": n, "op": NAME, ...}``; its reply has the same ``id``
and either ``ok`` or ``error``. The client compares :data:`VERSION` when it asks for a description of an environment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from agentgym import errors
from agentgym.canonical import canonical
from agentgym.env.arguments import ArgumentTypeError
from agentgym.errors import AgentGymError, EnvError, InfrastructureError, ToolError, UsageError
from agentgym.types import Message, Observation, RewardPart, Task, ToolSpec

VERSION: Final = 3
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of a frame, in both directions."""
MAX_REPLY_BYTES: Final = MAX_FRAME_BYTES - 1024
"""Most bytes of a single reply, which must fit into a frame."""
MAX_PAGE_BYTES: Final = MAX_FRAME_BYTES // 4
"""Bytes after which a page of tasks ends."""
_JOINED_BYTES: Final = MAX_FRAME_BYTES // 2
"""Most bytes of several requests or replies in one frame. A larger one is sent alone."""
MAX_MESSAGE_CHARS: Final = 1024 * 1024
"""Most characters of an error's message."""
T = TypeVar("T")
_adapters: dict[type[Any], TypeAdapter[Any]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvFacts:
    """Facts that hold for every episode of an environment."""

    version: int
    env_id: str
    max_turns: int | None
    takes_words: bool
    success_outcome: float
    longest_step_s: float
    is_live: bool = False
    reset_options: tuple[str, ...]
    tools: tuple[ToolSpec, ...]


def key_of(observation: Observation) -> str:
    """Return the default state key of an observation, as :meth:`agentgym.env.env.Env.state_key` makes it."""
    return canonical([message.text for message in observation])


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Facts about the state between two turns, which a client may need; sent with each answer."""

    observation: Observation
    state_key: str | None
    """State key. None if it is :func:`key_of` the observation, which is not sent twice; also if computing it failed, in
    which case the client requests it and gets the error."""
    is_key_observed: bool = False
    """True if the state key is :func:`key_of` the observation."""
    task_type: str = ""
    tools: tuple[ToolSpec, ...] | None = None
    """Tools of the episode; None if they have not changed since the last reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The result of a turn."""

    view: View
    reward_parts: tuple[RewardPart, ...]
    is_valid: bool
    terminated: bool
    truncated: bool
    success: bool = False
    played: Message | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    """The environment's own keys of ``info``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """Some tasks of a split and the number of all its tasks. A page of large tasks ends before the requested one."""

    total: int
    tasks: tuple[Task, ...]


def encode(value: object) -> bytes:
    """Encode a value as JSON; dataclasses become objects.

    Raises:
        EnvError: the value contains something that JSON cannot represent.
    """
    try:
        return to_json(value, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError):
        pass
    try:  # slower, but accepts halves of surrogate pairs, which models and attackers write
        return json.dumps(value, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvError(f"cannot be sent as JSON: {error}") from error


def encode_reply(reply: object, what: str) -> bytes:
    """Encode a reply, which must fit into a frame.

    Args:
        what: the request that is answered, for the error.

    Raises:
        TooLargeError: the reply does not fit.
        EnvError: the reply contains something that JSON cannot represent.
    """
    encoded = encode(reply)
    if len(encoded) > MAX_REPLY_BYTES:
        raise TooLargeError(
            f"the reply to {what} has {len(encoded):,} bytes, more than the limit of {MAX_REPLY_BYTES:,}; let the "
            "environment return less at a time"
        )
    return encoded


def fitting(tasks: Iterable[Task]) -> Iterator[Task]:
    """Yield the first tasks that fit into a page, and at least one."""
    size = 0
    for index, task in enumerate(tasks):
        size += len(encode(task))
        if index and size > MAX_PAGE_BYTES:
            return
        yield task


def joined_frames(parts: Iterable[bytes]) -> Iterator[str]:
    """Join requests or replies to as few frames below the size limit as possible."""
    gathered: list[bytes] = []
    size = 0
    for part in parts:
        if gathered and size + len(part) > _JOINED_BYTES:
            yield f"[{b','.join(gathered).decode()}]"
            gathered, size = [], 0
        gathered.append(part)
        size += len(part) + 1
    if gathered:
        yield f"[{b','.join(gathered).decode()}]"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: getattr(value, part.name) for part in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def decode(text: str | bytes) -> Any:
    """Decode JSON to plain values.

    Raises:
        UsageError: the text is not JSON.
    """
    try:
        return from_json(text, allow_inf_nan=True)
    except ValueError:
        pass
    try:  # accepts halves of surrogate pairs
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {str(error)[:200]}") from error


def read(kind: type[T], value: Any) -> T:
    """Convert plain values to a dataclass.

    Raises:
        UsageError: the values do not fit; the message says where.

    Example:
        >>> read(Task, {"id": "test-0", "split": "test", "seed": 3}).seed
        3
    """
    try:
        if kind not in _adapters:
            _adapters[kind] = TypeAdapter(kind)
        return cast(T, _adapters[kind].validate_python(value))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or kind.__name__
        raise UsageError(f"{where}: {first['msg']}") from error


# ------------------------------------------------------------------------------------------------------------ errors

_SENT: Final = (
    "ClosedError", "ConfigError", "CorruptDataError", "EnvError", "EnvTimeoutError", "HungError", "MissingExtraError",
    "PolicyFaultError", "ReplayMismatchError", "ResetNeededError", "RewardError", "SandboxDeadError",
    "SandboxDiskFullError", "SandboxError", "SandboxImageError", "SandboxRefusedError", "SandboxUnavailableError",
    "ToolError", "UnknownNameError", "UsageError",
)  # fmt: skip
"""Error classes that are sent by name. Other errors become their nearest base class among these."""


class BusyError(InfrastructureError):
    """The server is full; try again after ``retry_after_s`` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NoSessionError(EnvError):
    """The server does not know the session, which was idle for too long, closed, or lost in a restart."""


class NoStateError(EnvError):
    """The server has dropped a snapshot's state; its actions can be replayed."""


class TooLargeError(EnvError):
    """A request or a reply exceeds the limit of one frame. Other requests of the connection are unaffected."""


class ForbiddenError(UsageError):
    """The token is missing, wrong, or of the wrong kind."""


_OWN: Final = {
    kind.__name__: kind for kind in (ArgumentTypeError, NoSessionError, NoStateError, TooLargeError, ForbiddenError)
}


def error_as_json(error: BaseException) -> dict[str, Any]:
    """Convert an error to JSON. An error that is not agentgym's becomes an :class:`EnvError`. Long messages are cut."""
    message = _cut(str(error))
    if isinstance(error, BusyError):
        return {"type": "BusyError", "message": message, "retry_after_s": error.retry_after_s}
    for kind in type(error).__mro__:
        if kind.__name__ in _SENT or kind.__name__ in _OWN:
            extra = {"error_type": _cut(error.error_type)} if isinstance(error, ToolError) else {}
            return {"type": kind.__name__, "message": message, **extra}
    return {"type": "EnvError", "message": f"{type(error).__name__}: {message}"}


def _cut(message: str) -> str:
    left_out = len(message) - MAX_MESSAGE_CHARS
    return message if left_out <= 0 else f"{message[:MAX_MESSAGE_CHARS]} [{left_out:,} more characters]"


def error_from_json(sent: Mapping[str, Any]) -> AgentGymError:
    """Convert a received error back to an exception."""
    name, message = str(sent.get("type")), str(sent.get("message"))
    if name == "BusyError":
        return BusyError(message, float(sent.get("retry_after_s", 1.0)))
    if name == "ToolError":
        return ToolError(message, str(sent.get("error_type", "tool_error")))
    if name == "MissingExtraError":  # the constructor of this class takes other arguments
        return UsageError(message)
    made = _OWN.get(name) or (getattr(errors, name) if name in _SENT else EnvError)
    assert issubclass(made, AgentGymError)
    return made(message)


def messages_as_json(observation: Sequence[Message]) -> list[dict[str, str]]:
    """Return roles and texts of messages, which is all that an agent sees."""
    return [{"role": message.role, "text": message.text} for message in observation]
