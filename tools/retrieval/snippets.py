"""Which part of a document a result shows."""

from __future__ import annotations

from collections.abc import Iterable

SNIPPET_CHARS = 320
"""About 80 tokens of English: retrievers know no tokenizer, and four characters to a token is the usual estimate."""


def snippet_of(text: str, terms: Iterable[str], max_chars: int = SNIPPET_CHARS) -> str:
    """The window of a text that shows the most of the terms, cut at words, each cut marked by an ellipsis.

    Args:
        terms: lower-case words; the window opens a little before the first place of one of them.

    Example:
        >>> snippet_of("one two three four five six seven", ["five"], max_chars=16)
        '… five six …'
    """
    if len(text) <= max_chars:
        return " ".join(text.split())
    first = _best_place(text.lower(), tuple(terms), max_chars)
    first = max(0, min(first - max_chars // 3, len(text) - max_chars))
    last = first + max_chars
    if first > 0:
        first = text.find(" ", first, last) + 1 or first
    if last < len(text):
        cut = text.rfind(" ", first, last + 1)
        last = cut if cut > first else last
    shown = " ".join(text[first:last].split())
    return ("… " if first else "") + shown + (" …" if last < len(text) else "")


def _best_place(lowered: str, terms: tuple[str, ...], max_chars: int) -> int:
    places = sorted(place for term in terms if (place := lowered.find(term)) >= 0)
    if not places:
        return 0
    reach = max_chars * 2 // 3  # of the window lies behind the place
    return max(places, key=lambda place: (sum(place <= other < place + reach for other in places), -place))
