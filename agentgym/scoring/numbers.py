"""Numbers in text: find the answer and compare it within a tolerance."""

from __future__ import annotations

import math
import re

_NUMBER = re.compile(r"(?<![\w.])[-+\u2212]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?:\s*/\s*\d[\d,]*)?(?:\s*%)?")
_GROUPED = re.compile(r"\d{1,3}(,\d{3})+")


def read_number(text: str) -> float | None:
    """Return the last number in a text, or None if there is none.

    A number may have a sign, thousands separators, a fraction, an exponent or a percent sign.

    Example:
        >>> read_number("12 apples and 1,250.5 pears"), read_number("3/4 of them"), read_number("up by 12 %")
        (1250.5, 0.75, 0.12)
        >>> read_number("none") is None
        True
    """
    found = _NUMBER.findall(text)
    return _value(found[-1]) if found else None


def is_near(given: float, wanted: float, *, tolerance: float = 1e-9, absolute: float = 0.0) -> bool:
    """Return True if two numbers differ by at most a share of the wanted one or by an absolute amount.

    Example:
        >>> is_near(3.1416, 3.14159265, tolerance=1e-4), is_near(0.0, 1e-3, absolute=1e-2)
        (True, True)
    """
    return abs(given - wanted) <= max(tolerance * abs(wanted), absolute)


def _value(text: str) -> float | None:
    bare = text.replace("\u2212", "-").rstrip()
    share = 0.01 if bare.endswith("%") else 1.0
    top, _, bottom = bare.rstrip("% ").partition("/")
    numbers = [_plain(part) for part in (top, bottom) if part.strip()]
    if any(not math.isfinite(number) for number in numbers) or (len(numbers) == 2 and numbers[1] == 0):
        return None
    return share * (numbers[0] / numbers[1] if len(numbers) == 2 else numbers[0])


def _plain(text: str) -> float:
    """Convert a text to a number. A comma that does not separate thousands separates items, of which the last one
    counts.
    """
    bare = text.strip()
    if "," in bare and not _GROUPED.fullmatch(bare.lstrip("+-").partition(".")[0]):
        bare = bare.rstrip(",").rpartition(",")[2]
    return float(bare.replace(",", ""))
