"""Harmony, the channels of gpt-oss: analysis is thinking, commentary to a function is a call, final is the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentgym.render.formats.reading import (
    MAX_CALLS,
    NotReadableError,
    Reading,
    as_json,
    json_call,
    json_value,
    too_many,
)
from agentgym.types import Call, MalformedCall, ToolCall, ToolSpec

_START = "<|start|>assistant"
_TO = re.compile(r"\bto=(?:functions\.)?([\w.\-]+)")
_ENDS = re.compile(r"<\|(?:end|call|return)\|>")


class Harmony:
    """Messages of one completion, each with a header, ``<|message|>`` and a body.

    Example:
        >>> text = ' to=functions.look<|channel|>commentary json<|message|>{"at": "mug"}<|call|>'
        >>> Harmony().parse(text, []).calls
        (ToolCall(name='look', arguments={'at': 'mug'}, id='0'),)
    """

    name = "harmony"
    marks = (_START, "<|message|>", "<|end|>", "<|call|>", "<|return|>")

    def parse(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Parse a completion without its thinking."""
        calls: list[Call] = []
        said: list[str] = []
        at = 0
        for piece in text.split(_START):
            span = (at, at + len(piece))
            at = span[1] + len(_START)
            if len(calls) >= MAX_CALLS:
                calls.append(too_many(text, span[0]))
                break
            header, found, body = piece.partition("<|message|>")
            body = _ENDS.split(body, maxsplit=1)[0]
            recipient = _TO.search(header)
            if recipient is not None:
                calls.append(_call(recipient.group(1), body if found else None, span, str(len(calls))))
            elif found and "analysis" not in header:
                said.append(body.strip())
            elif not found and piece.strip():
                said.append(_ENDS.sub("", piece).strip())
        return Reading("\n".join(part for part in said if part), tuple(calls))

    def thinking(self, text: str) -> str:
        """Return the analysis channel of a completion."""
        pieces = (piece.partition("<|message|>") for piece in text.split(_START))
        bodies = [_ENDS.split(body, maxsplit=1)[0] for header, _, body in pieces if "<|channel|>analysis" in header]
        return "\n".join(body.strip() for body in bodies)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        written = []
        for call in calls:
            body = as_json(dict(call.arguments), self.marks)
            written.append(f" to=functions.{call.name}<|channel|>commentary json<|message|>{body}<|call|>")
        return _START.join(written)


def _call(name: str, body: str | None, span: tuple[int, int], call_id: str) -> Call:
    try:
        if body is None:
            raise NotReadableError("expected <|message|> and a JSON object")
        return json_call({"name": name, "arguments": json_value(body or "{}")}, call_id)
    except NotReadableError as error:
        return MalformedCall(span, str(error), body or "")
