"""``<|tool_call>call:NAME{key:<|"|>text<|"|>,n:1}<tool_call|>``: Gemma 4."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from agentgym.canonical import MAX_DEPTH
from agentgym.render.formats.blocks import Block, one_call, read_blocks
from agentgym.render.formats.reading import NotReadableError, Reading, as_json, check_value, json_value
from agentgym.types import Call, ToolCall, ToolSpec

QUOTE = '<|"|>'
_HEAD = re.compile(r"\s*call:([\w.\-]+)\s*(?=\{)")
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,15}")
_NO_MARK = r"<(?!\|tool_call>|tool_call\|>)"
_BARE = re.compile(rf"(?:[^,\[\]{{}}<]|{_NO_MARK})++")
_KEY = re.compile(r'\s*(?:<\|"\|>(.*?)<\|"\|>|([^:<>,{}\[\]]*+))\s*:', re.DOTALL)


class Gemma4:
    """Objects with bare keys, and text between ``<|"|>`` marks.

    Example:
        >>> Gemma4().parse('<|tool_call>call:go{to:<|"|>fridge<|"|>,n:2}<tool_call|>', []).calls
        (ToolCall(name='go', arguments={'to': 'fridge', 'n': 2}, id='0'),)
    """

    name = "gemma4"
    marks = ()

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""

        def read(block: Block, call_id: str) -> tuple[Call]:
            return one_call(block, lambda: _call(block.body, call_id))

        return read_blocks(text, "<|tool_call>", "<tool_call|>", read, _value_end)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        return "".join(f"<|tool_call>call:{call.name}{_text(dict(call.arguments))}<tool_call|>" for call in calls)


def _value_end(text: str, at: int) -> int:
    head = _HEAD.match(text, at)
    with suppress(NotReadableError):
        return _value(text, head.end(), 0)[1] if head else at
    return at


def _call(body: str, call_id: str) -> ToolCall:
    head = _HEAD.match(body)
    if head is None:
        raise NotReadableError("expected call:NAME{key:value}")
    value, end = _value(body, head.end(), 0)
    if body[end:].strip():
        raise NotReadableError(f"text after the call: {body[end:].strip()[:40]!r}")
    check_value(value)
    return ToolCall(head.group(1), value, call_id)


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    if depth > MAX_DEPTH:
        raise NotReadableError(f"nested deeper than {MAX_DEPTH}")
    if text.startswith(QUOTE, at):
        end = text.find(QUOTE, at + len(QUOTE))
        if end < 0:
            raise NotReadableError(f"text without a closing {QUOTE}")
        return text[at + len(QUOTE) : end], end + len(QUOTE)
    if text.startswith("{", at):
        return _members(text, at + 1, depth)
    if text.startswith("[", at):
        return _items(text, at + 1, depth)
    bare = _BARE.match(text, at)
    if bare is None:
        raise NotReadableError("a value is missing")
    return _scalar(bare.group().strip()), bare.end()


def _scalar(word: str) -> object:
    if _WHOLE.fullmatch(word):
        return int(word)
    try:
        return json_value(word)
    except NotReadableError:
        return {"None": None, "True": True, "False": False}.get(word, word)


def _members(text: str, at: int, depth: int) -> tuple[dict[str, object], int]:
    members: dict[str, object] = {}
    while not text.startswith("}", at):
        found = _KEY.match(text, at)
        if found is None:
            raise NotReadableError("expected key:value and a closing }")
        key = found[2].strip() if found[1] is None else found[1]
        members[key], at = _value(text, _skip(text, found.end()), depth + 1)
        at = _after_item(text, at, "}")
    return members, at + 1


def _items(text: str, at: int, depth: int) -> tuple[list[object], int]:
    items: list[Any] = []
    while not text.startswith("]", at):
        item, at = _value(text, _skip(text, at), depth + 1)
        items.append(item)
        at = _after_item(text, at, "]")
    return items, at + 1


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _key(key: str) -> str:
    return key if key and key == key.strip() and not set(key) & set("<>,:{}[]") else _text(key)


def _after_item(text: str, at: int, closing: str) -> int:
    """Return the place of the next item or of the closing bracket."""
    at = _skip(text, at)
    if text.startswith(",", at):
        return _skip(text, at + 1)
    if not text.startswith(closing, at):
        raise NotReadableError(f"expected , or a closing {closing}")
    return at


def _text(value: object) -> str:
    if isinstance(value, str):
        return f"{QUOTE}{value}{QUOTE}"
    if isinstance(value, dict):  # keys in order, as the template writes them
        return "{" + ",".join(f"{_key(key)}:{_text(item)}" for key, item in sorted(value.items())) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_text(item) for item in value) + "]"
    return as_json(value)
