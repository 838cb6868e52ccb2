"""Calls as Python: Llama 3.2 and 4 (``pythonic``), LFM2 (``lfm2``), Gemma 3 (``tool_code``)."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from agentgym.render.formats.reading import (
    NotReadableError,
    Reading,
    Span,
    blocks,
    check_value,
    outside,
)
from agentgym.types import Call, MalformedCall, ToolCall, ToolSpec

MAX_SOURCE = 100_000
"""Characters of one block that Python's parser is given; its memory is many times the text's."""

_LOOSE = re.compile(r"([A-Za-z_][\w.]*)\((.*)\)", re.DOTALL)
_BETWEEN = re.compile(r"(?<=\))\s*[,\n]\s*(?=[A-Za-z_][\w.]*\()")
_KEY = re.compile(r"(?:^|,)\s*(\w+)=")
_SOUNDS_LIKE_CALL = re.compile(r"\[\s*[A-Za-z_][\w.]*\(")


class Pythonic:
    """``[f(a=1), g()]`` as the whole answer; text that does not begin with a call is an answer in words.

    Example:
        >>> Pythonic().parse("[go(to='fridge 1'), look()]", []).calls[0]
        ToolCall(name='go', arguments={'to': 'fridge 1'}, id='0')
    """

    name = "pythonic"

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        body = text.replace("<|python_start|>", "").replace("<|python_end|>", "").strip()
        if not _SOUNDS_LIKE_CALL.match(body):
            return Reading(body)
        return Reading("", tuple(_calls(body, (0, len(text)), 0)))

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        return _listed(calls)


class Marked:
    """Calls in Python between two marks.

    Example:
        >>> Marked("lfm2", "<|tool_call_start|>", "<|tool_call_end|>").parse(
        ...     "I look. <|tool_call_start|>[look(at='mug')]<|tool_call_end|>", []
        ... )
        Reading(text='I look.', calls=(ToolCall(name='look', arguments={'at': 'mug'}, id='0'),))
    """

    def __init__(self, name: str, opening: str, closing: str, joined: bool = True) -> None:
        self.name = name
        self._opening, self._closing, self._joined = opening, closing, joined

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        calls: list[Call] = []
        spans: list[Span] = []
        for block in blocks(text, self._opening, self._closing):
            calls += _calls(block.body.strip(), block.span, len(calls))
            spans.append(block.span)
        return Reading(outside(text, spans), tuple(calls))

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        body = _listed(calls) if self._joined else "\n".join(_call_text(call) for call in calls)
        return f"{self._opening}{body}{self._closing}"


def _calls(source: str, span: Span, first_id: int) -> list[Call]:
    """Read one or more calls; where the text is no Python as a whole, each call of it is read alone."""
    try:
        nodes = _nodes(source)
    except NotReadableError as error:
        pieces = _pieces(source)
        if len(pieces) > 1:
            return [call for n, piece in enumerate(pieces) for call in _calls(piece, span, first_id + n)]
        loose = _loose_call(pieces[0] if pieces else "", str(first_id))
        return [loose or MalformedCall(span, str(error), source[:200])]
    calls: list[Call] = []
    for node in nodes:
        try:
            calls.append(_call(node, str(first_id + len(calls))))
        except NotReadableError as error:
            calls.append(MalformedCall(span, str(error), source[:200]))
    return calls


def _loose_call(source: str, call_id: str) -> ToolCall | None:
    """Read a call whose text holds its own quotes unescaped, as LFM2.5's chat template writes it."""
    found = _LOOSE.fullmatch(source.strip())
    if found is None:
        return None
    keys = list(_KEY.finditer(found.group(2)))
    arguments: dict[str, Any] = {}
    for key, following in zip(keys, [*keys[1:], None], strict=True):
        text = found.group(2)[key.end() : following.start() if following else len(found.group(2))].strip()
        if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
            arguments[key.group(1)] = text[1:-1]
            continue
        try:
            arguments[key.group(1)] = _value(ast.parse(text, mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
    return ToolCall(found.group(1), arguments, call_id)


def _nodes(source: str) -> list[ast.expr]:
    if len(source) > MAX_SOURCE:
        raise NotReadableError(f"a call longer than {MAX_SOURCE} characters")
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotReadableError(f"not a Python call: {type(error).__name__}") from None
    nodes: list[ast.expr] = []
    for statement in body:
        if not isinstance(statement, ast.Expr):
            raise NotReadableError("expected calls like name(key=value)")
        nodes += statement.value.elts if isinstance(statement.value, ast.List | ast.Tuple) else [statement.value]
    if not nodes:
        raise NotReadableError("expected calls like name(key=value)")
    return nodes


def _call(node: ast.expr, call_id: str) -> ToolCall:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        raise NotReadableError("expected a call like name(key=value)")
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise NotReadableError("arguments must be named: name(key=value)")
    try:
        arguments = {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}
        name = ast.unparse(node.func)
    except RecursionError:
        raise NotReadableError("nested too deep") from None
    check_value(arguments)
    return ToolCall(name, arguments, call_id)


def _value(node: ast.expr) -> Any:
    """Return a literal; ``true``, ``false`` and ``null`` count, since models write them."""
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return json.loads(node.id)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {str(_value(key)): _value(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError):
        raise NotReadableError("values must be literals") from None
    if not isinstance(value, str | int | float | bool | None):
        raise NotReadableError("values must be text, numbers, lists or objects")
    return value


def _pieces(source: str) -> list[str]:
    """Cut ``[f(..), g(..)]`` between calls."""
    inside = source.strip().removeprefix("[").removesuffix("]")
    return [piece.strip() for piece in _BETWEEN.split(inside) if piece.strip()]


def _listed(calls: Sequence[ToolCall]) -> str:
    return "[" + ", ".join(_call_text(call) for call in calls) + "]"


def _call_text(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"
