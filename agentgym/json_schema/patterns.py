"""Random texts that match a regular expression, so that random arguments fit the ``pattern`` of a schema."""

from __future__ import annotations

import string
from collections.abc import Sequence
from re import _constants, _parser  # no public module parses expressions
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

_MORE: Final = 3
"""Most repetitions beyond those that an expression requires."""
_PRINTABLE: Final = string.digits + string.ascii_letters + " -_.,"
_CATEGORIES: Final = {
    "CATEGORY_DIGIT": string.digits,
    "CATEGORY_NOT_DIGIT": string.ascii_letters,
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_SPACE": string.ascii_letters + string.digits,
    "CATEGORY_WORD": string.ascii_letters + string.digits + "_",
    "CATEGORY_NOT_WORD": " -.",
}


def matching(pattern: str, rng: np.random.Generator) -> str:
    """Return a random text that an expression matches, unless it looks ahead or behind.

    Example:
        >>> import numpy as np
        >>> matching("^(ab){2}-[7]$", np.random.default_rng(0))
        'abab-7'
    """
    return _spelled(_parser.parse(pattern), rng, {})


def _spelled(parts: Sequence[Any], rng: np.random.Generator, groups: dict[int, str]) -> str:
    return "".join(_one(str(operation), value, rng, groups) for operation, value in parts)


def _one(operation: str, value: Any, rng: np.random.Generator, groups: dict[int, str]) -> str:
    match operation:
        case "LITERAL":
            return chr(value)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, inside = value
            most = least + _MORE if most is _constants.MAXREPEAT else min(most, least + _MORE)
            return "".join(_spelled(inside, rng, groups) for _ in range(int(rng.integers(least, most + 1))))
        case "SUBPATTERN":
            text = _spelled(value[-1], rng, groups)
            groups[value[0]] = text
            return text
        case "BRANCH":
            return _spelled(value[1][int(rng.integers(len(value[1])))], rng, groups)
        case "GROUPREF":
            return groups.get(value, "")
        case "ATOMIC_GROUP":
            return _spelled(value, rng, groups)
        case "IN" | "ANY" | "NOT_LITERAL" | "CATEGORY":
            allowed = _characters(operation, value)
            return allowed[int(rng.integers(len(allowed)))] if allowed else ""
        case _:  # anchors and assertions have no text of their own
            return ""


def _characters(operation: str, value: Any) -> str:
    """Return characters that one position of an expression allows, in a fixed order."""
    match operation:
        case "LITERAL":
            return chr(value)
        case "NOT_LITERAL":
            return _PRINTABLE.replace(chr(value), "")
        case "RANGE":
            return "".join(map(chr, range(value[0], min(value[1], value[0] + 200) + 1)))
        case "CATEGORY":
            return _CATEGORIES.get(str(value), _PRINTABLE)
        case "IN":
            is_negated = str(value[0][0]) == "NEGATE"
            named = "".join(_characters(str(kind), one) for kind, one in value[is_negated:])
            return "".join(one for one in _PRINTABLE if one not in named) if is_negated else named
        case _:
            return _PRINTABLE
