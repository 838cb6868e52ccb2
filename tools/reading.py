"""Texts under a token budget: shortened with a mark, split into pages, and searched."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from agentgym.errors import ConfigError

CUT = " […]"
"""Mark at the end of a shortened text."""
PLACE_CHARS = 160
"""Characters shown around a match."""

_WORDS_AND_SIGNS = re.compile(r"\w+|[^\w\s]")


def estimated_tokens(text: str) -> int:
    """Estimate the number of tokens of a text without a tokenizer: the larger of two usual estimates.

    The first estimate is one token per four characters, as in English prose. The second counts each word and sign as a
    token, and each character outside ASCII, as in scripts that tokenizers cover poorly.

    Example:
        >>> estimated_tokens("A demon of the night."), estimated_tokens("a b c d"), estimated_tokens("北京")
        (6, 4, 2)
    """
    num_ascii = len(text.encode("ascii", errors="ignore"))
    by_length = -(-num_ascii // 4) + len(text) - num_ascii
    return max(by_length, len(_WORDS_AND_SIGNS.findall(text)))


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of answers in tokens.

    Attributes:
        result_tokens: tokens of an answer of ``search`` or ``find``, shared evenly by the results.
        page_tokens: tokens of one page of a document.
        count_tokens: function that counts tokens. Pass a tokenizer's for exact budgets, for example ``lambda text:
            len(tokenizer.encode(text))``.

    Raises:
        ConfigError: a budget is below 16 tokens.
    """

    result_tokens: int = 600
    page_tokens: int = 800
    count_tokens: Callable[[str], int] = estimated_tokens

    def __post_init__(self) -> None:
        if min(self.result_tokens, self.page_tokens) < 16:
            raise ConfigError(f"budgets are at least 16 tokens; got {self.result_tokens} and {self.page_tokens}")


def cut_to_tokens(text: str, max_tokens: int, budget: Budget) -> str:
    """Return the beginning of a text within ``max_tokens``, cut at a word boundary if possible, with a mark.

    Example:
        >>> cut_to_tokens("one two three four five six seven eight", 6, Budget())
        'one two three […]'
    """
    if budget.count_tokens(text) <= max_tokens:
        return text
    least, most = 0, len(text)  # bisection over characters: ``fits`` always fits, ``too_long`` never does
    while most - least > 1:
        middle = (least + most) // 2
        if budget.count_tokens(text[:middle] + CUT) <= max_tokens:
            least = middle
        else:
            most = middle
    at_word = text.rfind(" ", 0, least + 1)
    return text[: at_word if at_word > least // 2 else least].rstrip() + CUT


@lru_cache(maxsize=256)  # cached, since a group's episodes open the same pages
def pages_of(text: str, budget: Budget) -> tuple[str, ...]:
    """Split a text into pages within the budget that end at a word; an empty text has one empty page.

    Joined, the pages equal the text except for white space at their edges.

    Example:
        >>> pages_of("word " * 30, Budget(page_tokens=16))[1:]
        ('word word word word word word word word word word word word', 'word word word word word word')
    """
    pages: list[str] = []
    begin = 0
    while begin < len(text):
        end = _end_of_page(text, begin, budget)
        page = text[begin:end].strip()
        if page:
            pages.append(page)
        begin = end
    return tuple(pages) or ("",)


def _end_of_page(text: str, begin: int, budget: Budget) -> int:
    reach = begin + 8 * budget.page_tokens  # tokens are rarely longer than that on average
    least, most = begin + 1, min(len(text), reach) + 1
    while most - least > 1:
        middle = (least + most) // 2
        if budget.count_tokens(text[begin:middle]) <= budget.page_tokens:
            least = middle
        else:
            most = middle
    if least >= len(text):
        return len(text)
    for border in ("\n\n", "\n", ". ", " "):  # the best boundary in the second half of the page
        at = text.rfind(border, begin + (least - begin) // 2, least)
        if at >= 0:
            return at + len(border)
    return least


def places_of(wanted: str, text: str) -> list[str]:
    """Return the text around each occurrence of a phrase, ignoring case and white space.

    Example:
        >>> places_of("DEMON of", "Lilu, a demon\\nof the night.")
        ['Lilu, a demon of the night.']
    """
    words = [re.escape(word) for word in wanted.split()]
    places = []
    for match in re.finditer(r"\s+".join(words), text, re.IGNORECASE):
        first = max(0, match.start() - PLACE_CHARS // 2)
        last = min(len(text), match.end() + PLACE_CHARS // 2)
        shown = " ".join(text[first:last].split())
        places.append(("… " if first else "") + shown + (" …" if last < len(text) else ""))
    return places
