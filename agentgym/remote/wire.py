"""Messages between an environment server and its clients: plain dataclasses, as JSON.

A frame is a list of requests or of replies. A request is ``{"id": n, "op": NAME, ...}``; its reply has the same ``id``
and either ``ok`` or ``error``. :data:`VERSION` is compared when an environment is described.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from agentgym import errors
from agentgym.errors import AgentGymError, EnvError, InfrastructureError, ToolError, UsageError
from agentgym.types import Message, Observation, RewardPart, Task, ToolSpec

VERSION: Final = 2
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
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
    reset_options: tuple[str, ...]
    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The state of an environment between two turns, as a client may ask for it; sent along with each answer."""

    observation: Observation
    state_key: str | None
    """None if the environment failed to say; the client then asks for it and gets the error."""
    task_type: str = ""
    tools: tuple[ToolSpec, ...] | None = None
    """None if they are those of the reply before."""


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
    """The environment's own keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """Some tasks of a split, and how many there are."""

    total: int
    tasks: tuple[Task, ...]


def encode(value: object) -> bytes:
    """Return a value as JSON; dataclasses become objects.

    Raises:
        EnvError: something in it has no form in JSON.
    """
    try:
        return to_json(value, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError):
        pass
    try:  # half surrogates, which models and attackers write; slower
        return json.dumps(value, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvError(f"cannot be sent as JSON: {error}") from error


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: getattr(value, part.name) for part in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def decode(text: str | bytes) -> Any:
    """Return JSON as plain values.

    Raises:
        UsageError: it is no JSON.
    """
    try:
        return from_json(text, allow_inf_nan=True)
    except ValueError:
        pass
    try:  # half surrogates
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {str(error)[:200]}") from error


def read(kind: type[T], value: Any) -> T:
    """Return plain values as a dataclass.

    Raises:
        UsageError: they have another form; the message says where.

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
"""Classes that keep their name on the way; others become their nearest class of these."""


class BusyError(InfrastructureError):
    """The server has as many sessions as it may; try again after ``retry_after_s``."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NoSessionError(EnvError):
    """The server does not know the session: it was reaped, closed, or lost in a restart."""


class NoStateError(EnvError):
    """The server does not hold a snapshot's state any more; its actions can be replayed."""


class ForbiddenError(UsageError):
    """The token is missing, wrong, or not for this."""


_OWN: Final = {kind.__name__: kind for kind in (NoSessionError, NoStateError, ForbiddenError)}


def error_as_json(error: BaseException) -> dict[str, Any]:
    """Return an error in the form in which it is sent; one that is not ours is an :class:`EnvError`."""
    if isinstance(error, BusyError):
        return {"type": "BusyError", "message": str(error), "retry_after_s": error.retry_after_s}
    for kind in type(error).__mro__:
        if kind.__name__ in _SENT or kind.__name__ in _OWN:
            extra = {"error_type": error.error_type} if isinstance(error, ToolError) else {}
            return {"type": kind.__name__, "message": str(error), **extra}
    return {"type": "EnvError", "message": f"{type(error).__name__}: {error}"}


def error_from_json(sent: Mapping[str, Any]) -> AgentGymError:
    """Return the error that was sent."""
    name, message = str(sent.get("type")), str(sent.get("message"))
    if name == "BusyError":
        return BusyError(message, float(sent.get("retry_after_s", 1.0)))
    if name == "ToolError":
        return ToolError(message, str(sent.get("error_type", "tool_error")))
    if name == "MissingExtraError":  # its constructor takes other arguments
        return UsageError(message)
    made = _OWN.get(name) or (getattr(errors, name) if name in _SENT else EnvError)
    assert issubclass(made, AgentGymError)
    return made(message)


def messages_as_json(observation: Sequence[Message]) -> list[dict[str, str]]:
    """Return what an agent sees of messages: roles and texts."""
    return [{"role": message.role, "text": message.text} for message in observation]
