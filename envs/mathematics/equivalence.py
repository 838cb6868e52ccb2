r"""MATH's own rule for equal answers: the last ``\boxed{}``, and texts that are equal after a normalisation.

Source: ``modeling/math_equivalence.py`` and ``modeling/dataset/util.py`` of hendrycks/math (MIT), whose steps are
followed in their order. Where a step of the original fails with an exception, the texts are compared as they stand.
"""

from __future__ import annotations

import re
from typing import Final

_COMMAND: Final = re.compile(r"\\(?:boxed|fbox)")
_FRACTION: Final = re.compile(r"(-?\d+)/(-?\d+)")
_LONGEST_NAME: Final = 2


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{}`` of a text, or of the last ``\fbox{}`` if it has none; else None.

    Example:
        >>> last_boxed(r"So \boxed{1} is wrong and \boxed{\frac{1}{2}} is right.")
        '\\frac{1}{2}'
        >>> last_boxed(r"\boxed 7 is the answer."), last_boxed(r"\boxed{1") is None
        ('7', True)
    """
    start = max(text.rfind("\\boxed"), -1)
    start = text.rfind("\\fbox") if start < 0 else start
    if start < 0:
        return None
    after = _COMMAND.sub("", text[start:], count=1)
    if after.startswith(" "):  # MATH's solutions have `\boxed 7`, which ends with the next space or dollar sign
        return re.split(r"[\s$]", after.lstrip(), maxsplit=1)[0].rstrip(".,") or None
    depth = 0
    for place, sign in enumerate(after):
        depth += (sign == "{") - (sign == "}")
        if depth == 0 and sign == "}":
            return after[: place + 1].strip()[1:-1].strip()
    return None


def is_equivalent(given: str, wanted: str) -> bool:
    r"""Return True if two answers are equal by MATH's rule.

    Example:
        >>> is_equivalent(r"\tfrac12", "1/2"), is_equivalent(r"10\text{ cm}", "10"), is_equivalent("2, 1", "1, 2")
        (True, True, False)
    """
    try:
        return _normalised(given) == _normalised(wanted)
    except (ValueError, IndexError):
        return given == wanted


def _normalised(text: str) -> str:
    text = text.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    for command in ("\\left", "\\right", "^{\\circ}", "^\\circ", "\\$"):
        text = text.replace(command, "")
    text = _without_units(text).replace("\\%", "")
    text = text.replace(" .", " 0.").replace("{.", "{0.")
    if not text:
        return text
    text = f"0{text}" if text[0] == "." else text
    left, *rest = text.split("=")
    if len(rest) == 1 and len(left) <= _LONGEST_NAME:  # `x = 5` is 5
        text = rest[0]
    text = _with_braces_in_roots(text).replace(" ", "")
    text = _with_braces_in_fractions(text)
    text = "\\frac{1}{2}" if text == "0.5" else text
    return _FRACTION.sub(_as_fraction, text) if _FRACTION.fullmatch(text) else text


def _as_fraction(match: re.Match[str]) -> str:
    """Write ``1/2`` as a fraction, if both numbers are written as Python writes them."""
    above, below = int(match[1]), int(match[2])
    return f"\\frac{{{above}}}{{{below}}}" if match[0] == f"{above}/{below}" else match[0]


def _without_units(text: str) -> str:
    r"""Drop ``\text{ cm}`` at the end; as in the original, a space after the brace marks a unit."""
    left, *rest = text.split("\\text{ ")
    if len(rest) > 1:
        raise ValueError("two units")
    return left


def _with_braces_in_roots(text: str) -> str:
    first, *rest = text.split("\\sqrt")
    return first + "".join("\\sqrt" + (part if part[0] == "{" else f"{{{part[0]}}}{part[1:]}") for part in rest)


def _with_braces_in_fractions(text: str) -> str:
    r"""Write ``\frac12`` and ``\frac1{72}`` with braces, but not ``\frac{72}1``, as the original does."""
    first, *rest = text.split("\\frac")
    written = [first]
    for part in rest:
        if part[0] == "{":
            written.append(part)
            continue
        if len(part) == 1:
            return text
        above, below, after = part[0], part[1], part[2:]
        written.append(f"{{{above}}}{{{below}}}{after}" if below != "{" else f"{{{above}}}{below}{after}")
    return "\\frac".join(written)
