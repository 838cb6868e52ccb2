"""Which part of a document a result shows."""

from __future__ import annotations

import re
from collections.abc import Iterable

SNIPPET_CHARS = 320
"""About 80 tokens of English: environments know no tokenizer, and four characters to a token is the usual estimate."""

_SPACES = re.compile(r"\s+")


def snippet_of(text: str, terms: Iterable[str], max_chars: int = SNIPPET_CHARS) -> str:
    """The window of a text around the first place where one of the terms stands, cut at words.

    Args:
        terms: lower-case words or beginnings of words.

    Example:
        >>> snippet_of("one two three four five six seven", ["five"], max_chars=16)
        '… five six …'
    """
    text = _SPACES.sub(" ", text).strip()
    if len(text) <= max_chars:
        return text
    lowered = text.lower()
    places = [place for term in terms if (place := lowered.find(term)) >= 0]
    first = max(0, min(min(places, default=0) - max_chars // 3, len(text) - max_chars))
    last = first + max_chars
    if first > 0:
        first = text.find(" ", first, last) + 1 or first
    if last < len(text):
        cut = text.rfind(" ", first, last + 1)
        last = cut if cut > first else last
    return ("… " if first else "") + text[first:last].strip() + (" …" if last < len(text) else "")
