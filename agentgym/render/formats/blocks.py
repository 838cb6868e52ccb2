"""Calls between marks in a completion.

A mark inside a call's arguments is text: a model that writes a page about ``</tool_call>`` does not end its call.
So the value of a block is read first, and marks are searched from its end. Reading ends at a tool's result that the
model made up: what follows was decided on a result that the tool never gave.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from agentgym.render.formats.reading import (
    INVENTED,
    MAX_CALLS,
    NotReadableError,
    Reading,
    Span,
    invented_rest,
    too_many,
)
from agentgym.types import Call, MalformedCall, ToolCall

ValueEnd = Callable[[str, int], int]
"""A function from a text and the start of a block's body to the end of the value in it. It returns the start if the
value cannot be read."""


@dataclass(frozen=True, slots=True)
class Block:
    """Text between two marks; ``span`` includes the marks."""

    body: str
    span: Span
    is_closed: bool
    is_invented: bool = False
    """True for the rest of a text from a made-up result on, in which another block begins."""


class _Places:
    """Places of a pattern in a text. Ascending searches take linear time in total."""

    def __init__(self, text: str, pattern: re.Pattern[str]) -> None:
        self._text, self._pattern, self._found = text, pattern, -1

    def first(self, at: int) -> int:
        """Return the first place at or after ``at``, or the length of the text."""
        if self._found < at:
            found = self._pattern.search(self._text, at)
            self._found = found.start() if found else len(self._text)
        return self._found


def blocks(
    text: str,
    opening: str,
    closing: str = "",
    value_end: ValueEnd | None = None,
    results: re.Pattern[str] | None = None,
) -> Iterator[Block]:
    """Yield marked blocks. An unclosed block ends with its value, or else at the next mark or at the end of the text.

    Args:
        closing: mark after a block; empty if there is none.
        value_end: reader of the value with which a body begins, for formats that quote text.
        results: texts of made-up results, at which the last block begins.

    Example:
        >>> [block.body for block in blocks("a <x>b</x> <x>c <x>d", "<x>", "</x>")]
        ['b', 'c ', 'd']
    """
    openings = _Places(text, re.compile(re.escape(opening)))
    closings = _Places(text, re.compile(re.escape(closing) if closing else r"(?!)"))
    invented = _Places(text, results or re.compile(r"(?!)"))
    at = openings.first(0)
    while at < len(text):
        start = at + len(opening)
        after = value_end(text, start) if value_end else start
        following, stop = openings.first(after), closings.first(after)
        is_closed = stop < following
        begins = end = stop + len(closing)
        if not is_closed:
            begins = after
            stop = end = after if after > start else min(following, invented.first(after))
        yield Block(text[start:stop], (at, end), is_closed)
        if invented.first(begins) < following < len(text):
            yield Block(text[invented.first(begins) :], (invented.first(begins), len(text)), False, True)
            return
        at = following


def read_blocks(
    text: str,
    opening: str,
    closing: str,
    read: Callable[[Block, str], Sequence[Call]],
    value_end: ValueEnd | None = None,
) -> Reading:
    """Parse every block with ``read``, which takes the block and the id of its first call."""
    calls: list[Call] = []
    spans: list[Span] = []
    for block in blocks(text, opening, closing, value_end, INVENTED):
        if len(calls) >= MAX_CALLS or block.is_invented:
            calls.append(invented_rest(text, block.span[0]) if block.is_invented else too_many(text, block.span[0]))
            spans.append((block.span[0], len(text)))
            break
        calls += read(block, str(len(calls)))
        spans.append(block.span)
    return Reading(outside(text, spans), tuple(calls))


def outside(text: str, spans: Iterable[Span]) -> str:
    """Return the text outside of ascending spans, stripped of white space at both ends.

    Example:
        >>> outside("I look. <x>1</x>", [(8, 16)])
        'I look.'
    """
    pieces, at = [], 0
    for start, stop in spans:
        pieces.append(text[at:start])
        at = stop
    return "".join([*pieces, text[at:]]).strip()


def one_call(block: Block, read: Callable[[], ToolCall]) -> tuple[Call]:
    """Return the call that ``read`` makes of a block, or a malformed call with the reason."""
    try:
        return (read(),)
    except NotReadableError as error:
        return (MalformedCall(block.span, str(error), block.body.strip()),)


def split_at_tag(text: str, tag: str, opening: re.Pattern[str]) -> tuple[str, str]:
    """Return the text before a tag and that from it on, without the tag.

    Text that begins with a call, which ``opening`` matches, has nothing before it, and may quote the tag.
    """
    if opening.match(text):
        return "", text.strip()
    said, _, body = text.partition(tag)
    return said.strip(), body.strip()
