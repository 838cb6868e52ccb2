"""Harmony, the channels of gpt-oss: analysis is thinking, commentary to a function is a call, final is the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from agentgym.render.formats.blocks import blocks
from agentgym.render.formats.reading import (
    INVENTED,
    MAX_CALLS,
    NotReadableError,
    Reading,
    as_json,
    invented_rest,
    json_call,
    json_end,
    too_many,
)
from agentgym.types import Call, MalformedCall, ToolCall, ToolSpec

_START = "<|start|>assistant"
_TO = re.compile(r"\bto=(?:functions\.)?([\w.\-]+)")
_HEADER = re.compile(r"(?:(?!<\|(?:start|message|end|call|return)\|>).)*+<\|message\|>", re.DOTALL)
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
        for at, piece in _messages(text):
            span = (at, at + len(piece))
            if len(calls) >= MAX_CALLS:
                calls.append(too_many(text, at))
                break
            header, found, body = piece.partition("<|message|>")
            recipient = _TO.search(header)
            body, after = _parted(body)
            if recipient is not None:
                calls.append(_call(recipient.group(1), body if found else None, span, str(len(calls))))
                made_up = INVENTED.search(after)
                if made_up and text.startswith(_START, span[1]):
                    calls.append(invented_rest(text, span[1] - len(after) + made_up.start()))
                    break
            elif found and "analysis" not in header:
                said.append(body.strip())
            elif not found and piece.strip():
                said.append(_ENDS.sub("", piece).strip())
        return Reading("\n".join(part for part in said if part), tuple(calls))

    def thinking(self, text: str) -> str:
        """Return the analysis channel of a completion."""
        pieces = (piece.partition("<|message|>") for _, piece in _messages(text))
        bodies = [_parted(body)[0] for header, _, body in pieces if "<|channel|>analysis" in header]
        return "\n".join(body.strip() for body in bodies)

    def format(self, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> str:
        """Format calls as text that :meth:`parse` reads back."""
        written = []
        for call in calls:
            body = as_json(dict(call.arguments), self.marks)
            written.append(f" to=functions.{call.name}<|channel|>commentary json<|message|>{body}<|call|>")
        return _START.join(written)


def _messages(text: str) -> Iterator[tuple[int, str]]:
    """Yield the place and the text of each message, without its opening mark."""
    starts = (block.span[0] for block in blocks(_START + text, _START, "", _value_end))
    for start, following in pairwise(chain(starts, [len(text) + len(_START)])):
        yield start, text[start : following - len(_START)]


def _value_end(text: str, at: int) -> int:
    """Return the end of the arguments of a call's message, or the message's start."""
    header = _HEADER.match(text, at)
    if header is None or not _TO.search(header.group()):
        return at
    end = json_end(text, header.end())
    return end if end > header.end() else at


def _parted(body: str) -> tuple[str, str]:
    """Return a message's body up to the mark that ends it, and the text after the mark."""
    found = _ENDS.search(body, json_end(body, 0))
    return (body[: found.start()], body[found.end() :]) if found else (body, "")


def _call(name: str, body: str | None, span: tuple[int, int], call_id: str) -> Call:
    try:
        if body is None:
            raise NotReadableError("expected <|message|> and a JSON object")
        return json_call({"name": name, "arguments": body}, call_id)
    except NotReadableError as error:
        return MalformedCall(span, str(error), body or "")
