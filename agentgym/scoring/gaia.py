"""GAIA's rules for correct answers: numbers, lists and strings.

Source: ``scorer.py`` of the leaderboard of "GAIA: a benchmark for General AI Assistants", whose rules these are:

* a reference that Python can convert to a number is compared as a number; ``$``, ``%`` and commas are removed from the
  answer;
* a reference with a comma or a semicolon is a list: the answer needs the same number of elements, each equal as a
  number or as text without white space and case;
* any other reference is text, compared without white space, case and ASCII punctuation.
"""

from __future__ import annotations

import re
import string
from typing import Final

_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_UNITS: Final = str.maketrans("", "", "$%,")


def is_gaia_answer(answer: str, reference: str) -> bool:
    """Return True if GAIA's leaderboard counts an answer as right.

    Example:
        >>> is_gaia_answer("$1,000", "1000"), is_gaia_answer("b; A", "a, b"), is_gaia_answer("Sea Gull!", "seagull")
        (True, False, True)
    """
    number = _number(reference)
    if number is not None:
        return _given_number(answer) == number
    if not re.search(r"[,;]", reference):
        return _text(answer).translate(_NO_PUNCTUATION) == _text(reference).translate(_NO_PUNCTUATION)
    given, wanted = re.split(r"[,;]", answer), re.split(r"[,;]", reference)
    return len(given) == len(wanted) and all(map(_is_element, given, wanted))


def _is_element(given: str, wanted: str) -> bool:
    number = _number(wanted)
    return _text(given) == _text(wanted) if number is None else _given_number(given) == number


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _given_number(text: str) -> float:
    number = _number(text.translate(_UNITS))
    return float("inf") if number is None else number


def _text(text: str) -> str:
    return re.sub(r"\s", "", text).lower()
