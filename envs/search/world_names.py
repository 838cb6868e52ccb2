"""Names of the made encyclopedia's people, places and works: made-up words, in ways that tell the kinds apart."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from random import Random
from typing import Final

from agentgym.errors import UsageError

KINDS: Final = ("person", "town", "country", "book", "company")

_ENDINGS: Final[dict[str, tuple[str, ...]]] = {
    "town": ("Bay", "Hill", "Ford", "Falls", "Cross", "Vale", "Moor", "Gate"),
    "country": ("Islands", "Republic", "Union", "Coast"),
    "book": ("Song", "Winter", "Garden", "Letters", "Harbour", "Mirror", "Road", "Dream"),
    "company": ("Works", "Motors", "Foods", "Press", "Mills", "Glass", "Steel", "Tools"),
}
_ONSETS, _VOWELS, _CODAS = "bdfgklmnprtvz", "aeiou", "nrkm"
_NUM_WORDS: Final = len(_ONSETS) * len(_VOWELS) * len(_ONSETS) * len(_VOWELS) * len(_CODAS)
MAX_VOCABULARY: Final = _NUM_WORDS


@lru_cache(maxsize=8)
def name_words(num_words: int) -> tuple[str, ...]:
    """The first so many words that names are made of; the same in every world.

    Example:
        >>> words = name_words(6)
        >>> len(set(words)), all(word.isalpha() and word.istitle() for word in words)
        (6, True)
    """
    if not 2 <= num_words <= MAX_VOCABULARY:
        raise UsageError(f"vocabulary must be from 2 to {MAX_VOCABULARY}, got {num_words}")
    spelled = ["".join(letters).title() for letters in product(_ONSETS, _VOWELS, _ONSETS, _VOWELS, _CODAS)]
    Random(0).shuffle(spelled)  # words that follow one another should not look alike
    return tuple(spelled[:num_words])


def draw_names(kind: str, num_names: int, words: Sequence[str], rng: Random) -> list[str]:
    """Different names of a kind; none can be a name of another kind.

    Raises:
        UsageError: there are not enough words for so many names.
    """
    endings = _ENDINGS.get(kind, tuple(words))
    prefixes = len(words) if len(words) * len(endings) >= 2 * num_names else len(words) ** 2
    if num_names > prefixes * len(endings):
        raise UsageError(
            f"a vocabulary of {len(words)} words gives {prefixes * len(endings)} names of a {kind}, "
            f"{num_names} are needed: make vocabulary larger or num_pages smaller"
        )
    names = []
    for number in rng.sample(range(prefixes * len(endings)), num_names):
        prefix, ending = divmod(number, len(endings))
        first, second = divmod(prefix, len(words))
        start = words[second] if prefixes == len(words) else f"{words[first]} {words[second]}"
        names.append(f"{start} {endings[ending]}")
    return names
