"""How much of a text an agent is shown: estimates of tokens, cuts that are marked, pages, and finding on them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

CHARS_PER_TOKEN: Final = 4
"""The usual estimate for English: environments know no tokenizer."""
MARK: Final = " ..."
"""What ends a text that was cut."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def num_tokens(text: str) -> int:
    """About how many tokens a text has.

    Example:
        >>> num_tokens("Its mayor is Mira Kesh.")
        6
    """
    return -(-len(text) // CHARS_PER_TOKEN)


def cut(text: str, max_tokens: int) -> str:
    """The text, cut between words to about so many tokens with the cut marked.

    Example:
        >>> cut("Its mayor is Mira Kesh and its river is long.", 6)
        'Its mayor is Mira ...'
    """
    if num_tokens(text) <= max_tokens:
        return text
    room = max(1, max_tokens * CHARS_PER_TOKEN - len(MARK))
    kept = text[: room + 1].rsplit(None, 1)[0] if " " in text[:room] else text[:room]
    return kept.rstrip() + MARK


@lru_cache(maxsize=1 << 12)
def split_pages(text: str, max_tokens: int) -> tuple[str, ...]:
    """A text as pages of about so many tokens each, broken between sentences, and within one only if it is too long.

    Example:
        >>> split_pages("It is old. It is far. It is cold.", 5)
        ('It is old.', 'It is far.', 'It is cold.')
    """
    pages = [""]
    for sentence in _SENTENCE_END.split(text.strip()):
        for piece in _pieces(sentence, max_tokens * CHARS_PER_TOKEN):
            joined = f"{pages[-1]} {piece}".strip()
            if num_tokens(joined) <= max_tokens:
                pages[-1] = joined
            else:
                pages.append(piece)
    return tuple(page for page in pages if page) or ("",)


def sentences_with(text: str, wanted: str) -> list[str]:
    """The sentences of a text that hold some words, whatever their letters' case.

    Example:
        >>> sentences_with("It is old. Its MAYOR is Mira.", "mayor")
        ['Its MAYOR is Mira.']
    """
    sought = wanted.casefold()
    return [sentence for sentence in _SENTENCE_END.split(text) if sought in sentence.casefold()]


def _pieces(sentence: str, max_chars: int) -> list[str]:
    """A sentence, or if it is too long its parts, broken between words where there are some."""
    pieces = []
    while len(sentence) > max_chars:
        at = sentence.rfind(" ", 1, max_chars + 1)
        at = at if at > 0 else max_chars
        pieces.append(sentence[:at].strip())
        sentence = sentence[at:].strip()
    return [*pieces, sentence]
