"""Calls as Python: Llama 3.2 and 4 (``pythonic``), LFM2 (``lfm2``), Gemma 3 (``tool_code``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from agentgym.render.formats.blocks import Block, read_blocks, split_at_tag
from agentgym.render.formats.json_calls import LlamaJson
from agentgym.render.formats.python_values import NAME, PythonReader, ReadingBudget
from agentgym.render.formats.reading import (
    INVENTED,
    MAX_CALLS,
    SHOWN,
    NotReadableError,
    Reading,
    Span,
    check_value,
    too_many,
    without_marks,
)
from agentgym.types import Call, MalformedCall, ToolCall, ToolSpec

_ESCAPED = "\\x{:02x}"
_EXPECTED = "expected a call like name(key=value)"
_PER_VALUE = 50
"""So many characters of a malformed call count as one value of the budget, since they may be read again."""

_HEAD = re.compile(rf"({NAME})\s*+\(")
_SEPARATORS = re.compile(r"(?:[\s,;\[\]()]++|#[^\n]*+|\\\n)*+")
_LIST_END = re.compile(r"\s*+,?\s*+\]")
_BETWEEN = re.compile(rf"\)(?:\s*+[,;\]][\s,;\[\]]*+|[^\S\n]*+\n\s*+)(?={NAME}\()")
_LOOSE = re.compile(rf"({NAME})\((.*)\)", re.DOTALL)
_KEY = re.compile(r"(?:^|,)\s*+([\w\-]++)=")
_SOUNDS_LIKE_CALL = re.compile(rf"\[\s*+{NAME}\(")


class Pythonic:
    """``[f(a=1), g()]`` as the whole answer; text that does not begin with a call is an answer without calls.

    Example:
        >>> Pythonic().parse("[go(to='fridge 1'), look()]", []).calls[0]
        ToolCall(name='go', arguments={'to': 'fridge 1'}, id='0')
    """

    name = "pythonic"
    marks = ("<|python_start|>", "<|python_end|>")

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""
        said, body = split_at_tag(text, "<|python_start|>", _SOUNDS_LIKE_CALL)
        if said or text.lstrip().startswith(
            "<|python_start|>{"
        ):  # Llama 4 also writes the JSON of Llama 3 between them
            calls_in_json = LlamaJson().parse(body.removesuffix("<|python_end|>"), tools)
            if calls_in_json.calls:
                return replace(calls_in_json, text="\n".join(filter(None, (said, calls_in_json.text))))
        if not _SOUNDS_LIKE_CALL.match(body):
            return Reading(text.replace("<|python_start|>", "").replace("<|python_end|>", "").strip())
        calls, end = _calls(body, (0, len(text)), 0, ReadingBudget())
        after = body[end:].removeprefix("<|python_end|>").strip()
        return Reading("\n".join(part for part in (said, after) if part), tuple(calls))

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        return without_marks(_listed(calls), self.marks, _ESCAPED)


class Marked:
    """Calls in Python syntax between two marks.

    Example:
        >>> Marked("lfm2", "<|tool_call_start|>", "<|tool_call_end|>").parse(
        ...     "I look. <|tool_call_start|>[look(at='mug')]<|tool_call_end|>", []
        ... )
        Reading(text='I look.', calls=(ToolCall(name='look', arguments={'at': 'mug'}, id='0'),))
    """

    def __init__(self, name: str, opening: str, closing: str, joined: bool = True) -> None:
        self.name = name
        self.marks = (opening, closing)
        self._opening, self._closing, self._joined = opening, closing, joined

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""
        effort = ReadingBudget()

        def read(block: Block, call_id: str) -> list[Call]:
            body = block.body.strip()
            calls, end = _calls(body, block.span, int(call_id), effort)
            if end < len(body):
                calls.append(MalformedCall(block.span, "text after the calls", body[end : end + SHOWN]))
            return calls

        skipped = ReadingBudget()
        return read_blocks(
            text, self._opening, self._closing, read, lambda text, at: _calls_end(PythonReader(text, skipped), at)
        )

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        body = _listed(calls) if self._joined else "\n".join(_call_text(call) for call in calls)
        return f"{self._opening}{without_marks(body, self.marks, _ESCAPED)}{self._closing}"


def _calls(source: str, span: Span, first_id: int, effort: ReadingBudget) -> tuple[list[Call], int]:
    """Read calls one after another. Return them and the position of the text after the list.

    A malformed call ends where the next one begins, after a bracket and a comma or line break. Reading continues there,
    so a part of the text may be read again. ``effort`` limits that part, which makes the time linear.

    Args:
        source: text of the calls.
        span: range of the source in the completion, for malformed calls.
        first_id: id of the first call.
        effort: the budget. When it is spent, the rest is one malformed call.
    """
    calls: list[Call] = []
    end, reader = 0, PythonReader(source, effort)
    while True:
        between = _SEPARATORS.match(source, end)
        at = between.end() if between else end
        if at >= len(source):
            return calls or [MalformedCall(span, _EXPECTED, source[:SHOWN])], at
        if first_id + len(calls) >= MAX_CALLS:
            return [*calls, replace(too_many(source, at), span=span)], len(source)
        if calls and "]" in source[end:at] and not _HEAD.match(source, at):
            return calls, at
        try:
            call, end = _call_at(reader, at, str(first_id + len(calls)))
        except NotReadableError as error:
            effort.left -= (error.end - at) // _PER_VALUE
            following = _BETWEEN.search(source, at) if effort.left > 0 else None
            if following and INVENTED.search(source, at, following.end()):
                following = None
            end = following.end() if following else len(source)
            piece = source[at : following.start() + 1 if following else end].rstrip()
            loose = _loose_call(piece.removesuffix("]").rstrip(), str(first_id + len(calls)), effort)
            calls.append(loose or MalformedCall(span, str(error), piece[:SHOWN]))
        else:
            calls.append(call)


def _calls_end(reader: PythonReader, at: int) -> int:
    """Return the end of the calls that can be read one after another from ``at`` on."""
    end = at
    with suppress(NotReadableError):
        while True:
            between = _SEPARATORS.match(reader.text, end)
            _, end = _call_at(reader, between.end() if between else end, "")
    closing = _LIST_END.match(reader.text, end)
    return closing.end() if closing and end > at else end


def _call_at(reader: PythonReader, at: int, call_id: str) -> tuple[ToolCall, int]:
    head = _HEAD.match(reader.text, at)
    if head is None:
        raise NotReadableError(_EXPECTED, at)
    reader.effort.spend(1, at)
    arguments, end = reader.arguments(head.end())
    try:
        check_value(arguments)
    except NotReadableError as error:
        raise NotReadableError(str(error), end) from None
    return ToolCall(head.group(1), arguments, call_id), end


def _loose_call(source: str, call_id: str, effort: ReadingBudget) -> ToolCall | None:
    """Read a call with unescaped quotes inside its text, as LFM2.5's chat template writes it."""
    found = _LOOSE.fullmatch(source)
    if found is None:
        return None
    inside = found.group(2)
    keys = list(_KEY.finditer(inside))
    if not keys or keys[0].start() > 0:
        return None
    arguments: dict[str, object] = {}
    for key, following in zip(keys, [*keys[1:], None], strict=True):
        text = inside[key.end() : following.start() if following else len(inside)].strip()
        if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
            arguments[key.group(1)] = text[1:-1]
            continue
        try:
            arguments[key.group(1)], end = PythonReader(text, effort).value(0)
            check_value(arguments[key.group(1)])
        except NotReadableError:
            return None
        if end < len(text):
            return None
    return ToolCall(found.group(1), arguments, call_id)


def _listed(calls: Sequence[ToolCall]) -> str:
    return "[" + ", ".join(_call_text(call) for call in calls) + "]"


def _call_text(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"
