"""Conversion of actions from all accepted forms to an assistant message."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from agentgym.canonical import read_arguments, require_writable
from agentgym.errors import AgentGymError, EnvError, UsageError, gist
from agentgym.types import Call, MalformedCall, Message, ToolCall

Action: TypeAlias = Message | str | ToolCall | Sequence[ToolCall | Mapping[str, object]] | Mapping[str, object]
"""An action that ``step`` accepts: a message, text as a person types it, one or several calls, or OpenAI's dicts for
them."""


class HasOracle(Protocol):
    """An environment, as far as its gold policy goes."""

    @property
    def env_id(self) -> str: ...

    def oracle(self) -> Action: ...

    def parse_action(self, text: str) -> Message: ...


def gold_action(env: HasOracle) -> Message:
    """Return the action of an environment's gold policy.

    Raises:
        UsageError: the environment has no gold policy.
        EnvError: it has none for this state, as after moves that it would not have made.
    """
    try:
        return as_message(env.oracle(), env.parse_action)
    except AgentGymError:
        raise
    except Exception as error:
        why = f": {gist(error)}" if str(error) else ""
        raise EnvError(
            f"{env.env_id}: its oracle knows no action in this state ({type(error).__name__}{why})"
        ) from error


def as_message(action: Action, parse: Callable[[str], Message]) -> Message:
    """Convert an action to an assistant message.

    Args:
        parse: converts text that a person typed.

    Raises:
        UsageError: the action has none of the forms of :data:`Action`.

    Example:
        >>> as_message({"name": "go", "arguments": '{"to": "fridge 1"}'}, Message).calls
        (ToolCall(name='go', arguments={'to': 'fridge 1'}, id='0'),)
    """
    if isinstance(action, Message):
        return action
    if isinstance(action, str):
        return parse(action)
    if isinstance(action, Mapping) and ("role" in action or "content" in action or "tool_calls" in action):
        return _openai_message(action)
    calls = action if isinstance(action, list | tuple) else [action]
    return Message("assistant", calls=tuple(_call(call, number) for number, call in enumerate(calls)))


def _openai_message(message: Mapping[str, Any]) -> Message:
    if message.get("role", "assistant") != "assistant":
        raise UsageError(f"an action is a message of the role 'assistant', got {message['role']!r}")
    calls = tuple(_call(call, number) for number, call in enumerate(message.get("tool_calls") or ()))
    return Message("assistant", message.get("content") or "", calls)


def _call(call: object, number: int) -> Call:
    if isinstance(call, ToolCall | MalformedCall):
        return call
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UsageError(
            "an action is a Message, text, a ToolCall, a list of calls, or a dict in OpenAI's format (a message, or "
            f"{{'name': ..., 'arguments': ...}}); got {call!r}"
        )
    assert isinstance(call, Mapping)
    name, written = function["name"], function.get("arguments")
    try:
        arguments = read_arguments(function)
        require_writable(arguments)
    except ValueError as error:
        text = written if isinstance(written, str) else json.dumps(function, default=str)
        return MalformedCall((0, len(text)), f"the arguments of {name} cannot be read: {error}", text)
    return ToolCall(name, arguments, str(call.get("id") or number))
