"""Numbers in text: find the answer and compare it within a tolerance."""

from __future__ import annotations

import math
import re
from typing import Final

_SPACES: Final = " \u00a0\u2007\u2009\u202f"  # of SI and ISO 80000: ordinary, without break, of a digit's width, thin
_MARKS: Final = ("'", "\u2019", "_")
_BY_SPACE: Final = "|".join(rf"[1-9]\d{{0,2}}(?:{mark}\d{{3}})+(?!\d)" for mark in (*_SPACES, *_MARKS))
_DIGITS: Final = (
    # 1 234 567,89 and 1'234.5: groups that are no items of a list, so that a comma begins the decimals
    rf"(?:{_BY_SPACE})(?:\.\d+|,\d+(?![\d.,]|[{_SPACES}]\d))?"
    # 1.234,56 and 1.234.567
    r"|[1-9]\d{0,2}(?:\.\d{3})+,\d+(?![\d.,])|[1-9]\d{0,2}(?:\.\d{3}){2,}(?![\d.])"
    r"|\d[\d,]*(?:\.\d+)?|\.\d+"
)
_POWER: Final = r"(?:\^|\*\*)\s*\{?\s*[-+\u2212]?\d{1,3}\}?|[\u207b\u207a]?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+"
_TIMES_TEN: Final = rf"(?:\s*(?:[\u00d7x*\u00b7]|\\times|\\cdot)\s*10\s*(?:{_POWER}))"
_NUMBER: Final = re.compile(
    rf"(?<![\w.])[-+\u2212]?(?:10(?:{_POWER})|(?:{_DIGITS})(?:[eE][-+]?\d+|{_TIMES_TEN})?)"
    rf"(?:\s*/\s*(?:{_DIGITS}))?(?:\s*%)?"
)
_SCALED: Final = re.compile(rf"(?:\s*(?:[\u00d7x*\u00b7]|\\times|\\cdot)\s*)?10\s*({_POWER})$")
_GROUPS: Final = re.compile(rf"(?<![\w.,])(?:{_BY_SPACE}|\d{{1,3}}(?:,\d{{3}})+(?!\d))")
_GROUPED: Final = re.compile(r"\d{1,3}(,\d{3})+")
_EUROPEAN: Final = re.compile(r"[-+]?[1-9]\d{0,2}(?:(?:\.\d{3})+,\d+|(?:\.\d{3}){2,})")
_RAISED: Final = str.maketrans(
    "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b\u207a", "0123456789-+"
)
_NO_MARKS: Final = str.maketrans("", "", _SPACES + "".join(_MARKS))


def read_number(text: str) -> float | None:
    r"""Return the last number in a text, or None if there is none.

    A number may have a sign, a fraction, a percent sign, and an exponent (``1e6``, ``1.5 x 10^6``). Thousands are
    separated by commas, spaces of any width, apostrophes or underscores. Dots separate thousands if there are several
    groups, or decimals after a comma. A comma after other groups begins decimals. Any other comma separates items, of
    which the last one counts.

    Example:
        >>> read_number("12 apples and 1,250.5 pears"), read_number("3/4 of them"), read_number("up by 12 %")
        (1250.5, 0.75, 0.12)
        >>> read_number("134 000"), read_number("1.234.567"), read_number("1.234,56"), read_number("1'000.5")
        (134000.0, 1234567.0, 1234.56, 1000.5)
        >>> read_number("1.234"), read_number("1,5"), read_number("3 x 10^8")
        (1.234, 5.0, 300000000.0)
        >>> read_number("none") is None
        True
    """
    plain = text.replace("{,}", ",").replace("\\,", "\u2009").replace("\\%", "%")  # as LaTeX writes them
    found = [match.group() for match in _NUMBER.finditer(plain)]
    return _value(found[-1]) if found else None


def without_groups(text: str) -> str:
    """Return a text whose numbers have no separators of thousands.

    Example:
        >>> without_groups("1 250 or 1,250.5, not 1, 2")
        '1250 or 1250.5, not 1, 2'
    """
    return _GROUPS.sub(lambda found: re.sub(r"\D", "", found.group()), text)


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
    top, _, bottom = bare.rstrip("%").partition("/")
    numbers = [_scaled(part.strip()) for part in (top, bottom) if part.strip()]
    if any(not math.isfinite(number) for number in numbers) or (len(numbers) == 2 and numbers[1] == 0):
        return None
    return share * (numbers[0] / numbers[1] if len(numbers) == 2 else numbers[0])


def _scaled(text: str) -> float:
    """Convert a text that may end with a power of ten."""
    power = _SCALED.search(text)
    if power is None:
        return _plain(text)
    exponent = int(power.group(1).translate(_RAISED).strip("^*{} ").replace(" ", ""))
    factor = text[: power.start()]
    return float(f"{_plain(factor) if factor.strip('+-') else float(factor + '1')!r}e{exponent}")


def _plain(text: str) -> float:
    """Convert a text without a power. A comma that does not separate thousands separates items, of which the last one
    counts.
    """
    bare = text.translate(_NO_MARKS)
    if bare != text:
        return float(bare.replace(",", "."))
    if _EUROPEAN.fullmatch(bare):
        return float(bare.replace(".", "").replace(",", "."))
    if "," in bare and not _GROUPED.fullmatch(bare.lstrip("+-").partition(".")[0]):
        bare = bare.rstrip(",").rpartition(",")[2]
    return float(bare.replace(",", ""))
