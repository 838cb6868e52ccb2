"""Parser of conversations in the format of OpenAI and TRL (``messages`` and ``tools``) into agentgym's types."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from agentgym.canonical import read_arguments, read_json
from agentgym.json_schema.validation import shape_problem
from agentgym.trainers.sft.fillers import Fillers
from agentgym.types import Message, Observation, Role, ToolCall, ToolResult, ToolSpec

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_THINKING: Final = ("reasoning_content", "thinking", "reasoning")
_NUM_NAMED: Final = 8
"""Number of columns that a message names."""


class RowError(Exception):
    """The error of a row that is not a valid conversation. The message says what was found and what was expected."""


@dataclass(frozen=True, slots=True)
class AssistantExchange:
    """A message of the assistant, and the replies to it."""

    said: Message
    replies: Observation = ()
    played: Message | None = None
    """The message that the environment executed instead of ``said``, if it replaced it."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation to learn from.

    Example:
        >>> row = {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}
        >>> read_conversation(row, "a.jsonl, line 1").exchanges[0].said.text
        '4'
    """

    where: str
    """File and line, or run and task, for error messages."""
    tools: tuple[ToolSpec, ...]
    first: Observation
    """Messages before the assistant's first."""
    exchanges: tuple[AssistantExchange, ...]
    num_fillers: int = 0
    """Nulls that were left out of arguments and schemas (:mod:`agentgym.trainers.sft.fillers`)."""


def read_conversation(row: object, where: str) -> Conversation:
    """Parse a row with the column ``messages`` and optionally ``tools``.

    Raises:
        RowError: the row is not a valid conversation; the message names the position and what was expected.
    """
    if not isinstance(row, Mapping):
        raise RowError(f"{_kind(row)}, expected an object with messages")
    try:
        json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise RowError("half a surrogate pair, expected text that is valid Unicode") from None
    if "messages" not in row:
        found = ", ".join(map(str, list(row)[:_NUM_NAMED])) or "nothing"
        raise RowError(f"no messages but {found}, expected a list of messages")
    messages = row["messages"]
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise RowError(f"messages is {_shown(messages)}, expected a list of messages")
    fillers = Fillers()
    tools = _tools(row.get("tools"), fillers)
    read: list[Message] = []
    open_calls: list[ToolCall] = []
    for number, message in enumerate(messages, 1):
        try:
            said = _message(message, tools, open_calls, fillers)
            if open_calls and said.role != "tool":
                raise RowError(f"role {said.role}, expected the result of the call of {open_calls[0].name!r} first")
        except RowError as error:
            raise RowError(f"message {number}: {error}") from None
        read.append(said)
        if said.role != "tool":
            open_calls = [call for call in said.calls if isinstance(call, ToolCall)]
    return replace(_conversation(read, tools, where), num_fillers=fillers.count)


def _conversation(messages: Sequence[Message], tools: tuple[ToolSpec, ...], where: str) -> Conversation:
    starts = [at for at, message in enumerate(messages) if message.role == "assistant"]
    if not starts:
        raise RowError("no message of the role assistant, expected at least one to learn from")
    if not starts[0]:
        raise RowError("message 1 is the assistant's, expected a system or user message before it")
    ends = [*starts[1:], len(messages)]
    exchanges = (
        AssistantExchange(messages[at], tuple(messages[at + 1 : end])) for at, end in zip(starts, ends, strict=True)
    )
    return Conversation(where, tools, tuple(messages[: starts[0]]), tuple(exchanges))


def _message(row: object, tools: Sequence[ToolSpec], open_calls: list[ToolCall], fillers: Fillers) -> Message:
    if not isinstance(row, Mapping):
        raise RowError(f"{_kind(row)}, expected an object with role and content")
    role = _ROLES.get(str(row.get("role")))
    if role is None:
        raise RowError(f"unknown role {row.get('role')!r}, expected {', '.join(_ROLES)}")
    text = _text(row.get("content"))
    if role == "assistant":
        return _assistant(row, text, tools, fillers)
    if row.get("tool_calls"):
        raise RowError(f"tool_calls of the role {role}, expected them of the assistant alone")
    if role == "tool":
        call = _answered(row, open_calls)
        return Message("tool", text, result=ToolResult(text, call.name, call.id))
    return Message(role, text)


def _assistant(row: Mapping[str, object], text: str, tools: Sequence[ToolSpec], fillers: Fillers) -> Message:
    if row.get("function_call") is not None:
        raise RowError("function_call, expected tool_calls")
    if row.get("weight", 1) not in (1, None):
        raise RowError(f"weight {row['weight']!r}, expected 1: every assistant message of a conversation is learnt")
    listed = row.get("tool_calls") or ()
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise RowError(f"tool_calls is {_shown(listed)}, expected a list of calls")
    calls = tuple(_call(call, tools, fillers) for call in listed)
    thinking = next((row[key] for key in _THINKING if row.get(key)), "")
    if not isinstance(thinking, str):
        raise RowError(f"thinking is {_shown(thinking)}, expected text")
    if not calls and not text.strip():
        raise RowError("an assistant message without text and calls, expected content or tool_calls")
    return Message("assistant", text, calls, thinking=thinking.strip(), answer=text)


def _call(row: object, tools: Sequence[ToolSpec], fillers: Fillers) -> ToolCall:
    function = (row.get("function") or row) if isinstance(row, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise RowError(f"the call {_shown(row)}, expected a function with a name and arguments")
    is_text = isinstance(function.get("arguments"), str)
    try:
        arguments = read_arguments(function, ignores_more=True)
    except ValueError as error:
        raise RowError(f"the arguments of {name}: {error}") from None
    known = {tool.name: tool for tool in tools}
    if name not in known:
        listed = ", ".join(known) or "none, add the column tools"
        raise RowError(f"a call of the unknown tool {name!r}, expected one of the row's tools ({listed})")
    own = row.get("id") if isinstance(row, Mapping) else None
    schema = known[name].parameters
    chosen = fillers.left_out(arguments, schema, schema, is_text=is_text)
    return ToolCall(name, chosen, own if isinstance(own, str) else "")


def _answered(row: Mapping[str, object], open_calls: list[ToolCall]) -> ToolCall:
    """Remove and return the call that a tool message answers; results must be in the order of the calls."""
    wanted, name = row.get("tool_call_id"), row.get("name")
    if not open_calls:
        raise RowError("a tool message that answers no call, expected one for each call of the assistant before it")
    call = open_calls[0]
    if wanted and call.id and wanted != call.id:
        raise RowError(f"tool_call_id {wanted!r}, expected {call.id!r}: results in the order of the calls")
    if name and name != call.name:
        raise RowError(f"a result of the tool {name!r}, expected {call.name!r}: results in the order of the calls")
    return open_calls.pop(0)


def _text(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RowError(f"content is {_shown(content)}, expected text or a list of text parts")
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) and (part.get("type") or "text") == "text" else None
        if not isinstance(text, str):
            raise RowError(f"the part {_shown(part)}, expected parts of the type text")
        texts.append(text)
    return "".join(texts)


def _tools(given: object, fillers: Fillers) -> tuple[ToolSpec, ...]:
    if isinstance(given, str):
        try:
            given = read_json(given) if given.strip() else ()
        except ValueError as error:
            raise RowError(f"tools are not JSON ({error})") from None
    if given is None:
        return ()
    if not isinstance(given, Sequence):
        raise RowError(f"tools is {_shown(given)}, expected a list of function schemas")
    return tuple(_tool(tool, fillers) for tool in given)


def _tool(row: object, fillers: Fillers) -> ToolSpec:
    if isinstance(row, str):
        try:
            row = read_json(row)
        except ValueError as error:
            raise RowError(f"a tool is not JSON ({error})") from None
    function = (row.get("function") or row) if isinstance(row, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise RowError(f"the tool {_shown(row)}, expected a function schema with a name")
    given = function.get("parameters")
    root = given if isinstance(given, Mapping) else {}
    parameters = fillers.left_out_of_schema(given, root) or {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise RowError(f"the parameters of the tool {name} are {_shown(parameters)}, expected a JSON schema")
    if problem := shape_problem(parameters):
        raise RowError(f"the parameters of the tool {name} are no JSON schema: {problem}")
    return ToolSpec(name, str(function.get("description") or ""), dict(parameters))


def _kind(value: object) -> str:
    kinds = {"NoneType": "null", "int": "a number", "float": "a number", "str": "a text", "bool": "true or false"}
    return kinds.get(name := type(value).__name__, f"a {name}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
