"""WebArena's rules for answers, addresses and contents (``evaluation_harness/evaluators.py``)."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from urllib.parse import parse_qs, urlsplit

_TAKEN_APART = re.compile(r"[;@#$%&?!()\[\]{}<>\"]|--|\.{2,}|[:,](?!\d)")


def cleaned(text: str) -> str:
    """Return a text in lower case, without one pair of quotes around it.

    Example:
        >>> cleaned(" 'A Mug' ")
        'a mug'
    """
    text = text.strip()
    if any(text.startswith(mark) and text.endswith(mark) for mark in ("'", '"')):
        text = text[1:-1]
    return text.lower()


def is_exact(given: str, wanted: str) -> bool:
    """Return True if two texts are equal once cleaned."""
    return cleaned(given) == cleaned(wanted)


def includes(given: str, wanted: str, *, as_word: bool = False) -> bool:
    """Return True if a text contains another; with ``as_word``, a single character must be a whole word.

    Words are divided as WebArena does by NLTK's tokenizer: at white space, at signs that it takes apart, and before a
    full stop, here at the end of any word.

    Example:
        >>> includes("It is 10.", "0"), includes("It is 10.", "0", as_word=True), includes("0.", "0", as_word=True)
        (True, False, True)
    """
    text, part = cleaned(given), cleaned(wanted)
    if as_word and len(part) == 1:
        words = _TAKEN_APART.sub(lambda found: f" {found[0]} ", text).split()
        return any(part in (word, word.removesuffix("."), word.strip("'")) for word in words)
    return part in text


def is_right_answer(given: str, exact: str | None, parts: Sequence[str]) -> bool:
    """Return True if an answer equals the exact answer, if there is one, and contains all parts."""
    if exact is not None and not is_exact(given, exact):
        return False
    return all(includes(given, part, as_word=len(parts) == 1) for part in parts)


def is_right_url(given: str, wanted: Sequence[str]) -> bool:
    """Return True if an address contains one wanted host and path, and for each parameter one of the wanted values.

    Example:
        >>> is_right_url("http://s.localhost/a/b?q=1&x=2", ["http://s.localhost/a?q=1"])
        True
    """
    base, query = _parsed(given)
    pairs = [_parsed(url) for url in wanted]
    if not any(path in base for path, _ in pairs):
        return False
    names = {name for _, parameters in pairs for name in parameters}
    for name in names:
        values = {value for _, parameters in pairs for value in parameters.get(name, ())}
        if not values & set(query.get(name, ())):
            return False
    return True


def has_contents(found: str, exact: str | None, parts: Sequence[str]) -> bool:
    """Return True if the found text is the exact one, or contains one alternative of each part."""
    text = html.unescape(found)
    if exact is not None:
        return is_exact(text, exact)
    return all(any(includes(text, one) for one in part.split(" |OR| ")) for part in parts)


def _parsed(url: str) -> tuple[str, dict[str, list[str]]]:
    split = urlsplit(url.rstrip("/"))
    return split.netloc + split.path, parse_qs(split.query)
