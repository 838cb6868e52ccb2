"""Texts under a budget of tokens: cut with the cut marked, in pages, and looked through."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from agentgym.errors import ConfigError

CUT = " […]"
"""Stands where a text was cut."""
PLACE_CHARS = 160
"""Shown around a place where a text was found."""

_WORDS_AND_SIGNS = re.compile(r"\w+|[^\w\s]")


def estimated_tokens(text: str) -> int:
    """About how many tokens a text has, without a tokenizer: the larger of two usual estimates.

    Four characters make a token in English prose; words and signs count singly where they are short, and a character
    outside ASCII counts as one token, as in scripts that tokenizers know little of.

    Example:
        >>> estimated_tokens("A demon of the night."), estimated_tokens("a b c d"), estimated_tokens("北京")
        (6, 4, 2)
    """
    num_ascii = len(text.encode("ascii", errors="ignore"))
    by_length = -(-num_ascii // 4) + len(text) - num_ascii
    return max(by_length, len(_WORDS_AND_SIGNS.findall(text)))


@dataclass(frozen=True, slots=True)
class Budget:
    """Longest answers, in characters and hits.

    Attributes:
        result_tokens: one answer of ``search`` or ``find``, shared evenly by the results.
        page_tokens: one page of a document.
        count_tokens: what counts them; hand in a tokenizer's for exact budgets, for example
            ``lambda text: len(tokenizer.encode(text))``.

    Raises:
        ConfigError: a budget is too small to say anything.
    """

    result_tokens: int = 600
    page_tokens: int = 800
    count_tokens: Callable[[str], int] = estimated_tokens

    def __post_init__(self) -> None:
        if min(self.result_tokens, self.page_tokens) < 16:
            raise ConfigError(f"budgets are at least 16 tokens; got {self.result_tokens} and {self.page_tokens}")


def cut_to_tokens(text: str, max_tokens: int, budget: Budget) -> str:
    """A text's beginning within so many tokens, cut at a word where there is one, the cut marked.

    Example:
        >>> cut_to_tokens("one two three four five six seven eight", 6, Budget())
        'one two three […]'
    """
    if budget.count_tokens(text) <= max_tokens:
        return text
    least, most = 0, len(text)  # characters: the first always fit, the last never do
    while most - least > 1:
        middle = (least + most) // 2
        if budget.count_tokens(text[:middle] + CUT) <= max_tokens:
            least = middle
        else:
            most = middle
    at_word = text.rfind(" ", 0, least + 1)
    return text[: at_word if at_word > least // 2 else least].rstrip() + CUT


@lru_cache(maxsize=256)  # a group's episodes open the same pages
def pages_of(text: str, budget: Budget) -> tuple[str, ...]:
    """A text in pages, each within the budget, that end at a word; one empty page if there is no text.

    Nothing is lost: the pages joined are the text, white space at their edges apart.

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
    reach = begin + 8 * budget.page_tokens  # tokens of more characters than that on average are rare
    least, most = begin + 1, min(len(text), reach) + 1
    while most - least > 1:
        middle = (least + most) // 2
        if budget.count_tokens(text[begin:middle]) <= budget.page_tokens:
            least = middle
        else:
            most = middle
    if least >= len(text):
        return len(text)
    for border in ("\n\n", "\n", ". ", " "):  # the best border in the page's second half
        at = text.rfind(border, begin + (least - begin) // 2, least)
        if at >= 0:
            return at + len(border)
    return least


def places_of(wanted: str, text: str) -> list[str]:
    """Return the text around each place of a phrase, in lower or upper case and however its words are spaced.

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
