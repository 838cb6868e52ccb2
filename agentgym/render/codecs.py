"""Codecs: the text formats in which models write tool calls.

A codec reads a completion's text as calls, each on its own (what cannot be read becomes a
:class:`~agentgym.types.MalformedCall` beside the good ones), and writes calls for demonstrations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Protocol

from agentgym.call_syntax import format_call, parse_calls
from agentgym.errors import unknown_name
from agentgym.types import Call, MalformedCall, ToolCall, ToolSpec


class Codec(Protocol):
    """One text format for tool calls."""

    name: str

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> tuple[Call, ...]:
        """The calls in a completion's text, in order."""
        ...

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Text that :meth:`parse` reads back as these calls."""
        ...


class CompactCodec:
    """One call a line, ``name: value; value`` (:mod:`agentgym.call_syntax`); for small models."""

    name = "compact"

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> tuple[Call, ...]:
        return parse_calls(text, tools)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        return "\n".join(format_call(call, tools) for call in calls)


class HermesCodec:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` blocks, as Hermes, Qwen2.5 and Qwen3 write them.

    Example:
        >>> HermesCodec().parse('Hm. <tool_call>{"name": "look", "arguments": {}}</tool_call>', [])
        (ToolCall(name='look', arguments={}, id='0'),)
    """

    name = "hermes"
    _BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> tuple[Call, ...]:
        calls: list[Call] = []
        for block in self._BLOCK.finditer(_without_thinking(text)):
            calls.append(_parse_json_call(block.group(1), block.span(), str(len(calls))))
        return tuple(calls)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        bodies = (json.dumps({"name": call.name, "arguments": dict(call.arguments)}) for call in calls)
        return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


class TextCodec:
    """No calls at all: the environment takes the completion's text as it is."""

    name = "text"

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> tuple[Call, ...]:
        return ()

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        return ""


CODECS: dict[str, Codec] = {codec.name: codec for codec in (CompactCodec(), HermesCodec(), TextCodec())}


def codec_named(name: str) -> Codec:
    """The codec of that name.

    Raises:
        UnknownNameError: no such codec; the message names what exists.
    """
    if name not in CODECS:
        raise unknown_name("codec", name, [*CODECS, "auto"])
    return CODECS[name]


def codec_of_template(chat_template: str) -> Codec:
    """The codec a chat template asks for: by a comment ``{#- codec: NAME -#}``, or by the tags it writes.

    Example:
        >>> codec_of_template("{#- codec: compact -#}{{ messages }}").name
        'compact'
    """
    marked = re.search(r"\{#-?\s*codec:\s*(\w+)", chat_template)
    if marked is not None:
        return codec_named(marked.group(1))
    return CODECS["hermes"]


def _parse_json_call(body: str, span: tuple[int, int], call_id: str) -> Call:
    try:
        value = json.loads(body)
    except ValueError as error:
        return MalformedCall(span, f"not JSON: {error}", body.strip())
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return MalformedCall(span, 'expected {"name": "...", "arguments": {...}}', body.strip())
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return MalformedCall(span, "arguments must be a JSON object", body.strip())
    return ToolCall(value["name"], arguments, call_id)


def _without_thinking(text: str) -> str:
    """The text with closed thinking blocked out, at the same character positions."""
    return re.sub(r"<think>.*?</think>", lambda found: " " * len(found.group()), text, flags=re.DOTALL)
