"""Themes of generated repositories, from ``themes.toml``, and the arguments of their calls."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agentgym.canonical import packaged

_ARGUMENT: Final = re.compile(r"\{(\w+)\}")
_GOODS: Final = ("bread", "milk", "tea", "soap", "rice")
_PUPILS: Final = ("ada", "ben", "cleo", "dan", "eve", "finn")
_TEXTS: Final = ("the cat sat", "A dog ran.", "the dog, the cat", "Rain in May", "cat and rain", "May day", "so it ran")
_TERMS: Final = ("cat", "dog", "the", "rain", "may", "sat", "fish")
_OWNERS: Final = ("ann", "bob", "cy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """A theme of repositories.

    Modules are templates as in :mod:`agentgym.envs.code.function_families`; ``$package`` is replaced by the package's
    name. A module comes after those that it imports. Its docstrings are a complete specification.
    """

    packages: Sequence[str]
    """Possible names of the package."""
    summary: str
    modules: Mapping[str, str]
    """Templates by module name; the last one is the top module."""
    calls: Mapping[str, str]
    """Calls of public functions by ``module.function``; ``{kind}`` is replaced by an argument of :data:`ARGUMENTS`."""
    constants: Mapping[str, Sequence[int | str]]


def draw_call(call: str, rng: random.Random) -> str:
    """Fill a theme's call with random arguments.

    Example:
        >>> draw_call("fee({amount})", random.Random(0))
        'fee(108)'
    """
    return _ARGUMENT.sub(lambda found: str(ARGUMENTS[found[1]](rng)), call)


def _time(rng: random.Random, first: int = 7, last: int = 19) -> str:
    return f"{rng.randint(first, last):02}:{rng.choice((0, 15, 30, 45)):02}"


def _bookings(rng: random.Random) -> list[tuple[str, str]]:
    made = []
    for _ in range(rng.randint(0, 5)):
        first, second = sorted((_time(rng), _time(rng)))
        if first != second:
            made.append((first, second))
    return made


def _points(rng: random.Random, fewest: int, most: int) -> list[int]:
    return [rng.randint(0, 20) for _ in range(rng.randint(fewest, most))]


def _moves(rng: random.Random) -> list[tuple[str, str, int]]:
    return [(*rng.sample(_OWNERS, 2), rng.choice((0, 1, 5, 20, 50, 60, 100))) for _ in range(rng.randint(0, 6))]  # type: ignore[misc]


def _terms(rng: random.Random, count: int) -> str:
    return repr(" ".join(rng.sample(_TERMS, count)))


ARGUMENTS: Final[Mapping[str, Callable[[random.Random], object]]] = {
    # shop
    "pieces": lambda rng: rng.randint(0, 24),
    "cents": lambda rng: rng.randint(0, 500),
    "prices": lambda rng: {name: rng.randint(1, 60) for name in _GOODS},
    "order": lambda rng: {
        name: rng.choice((1, 2, 4, 5, 6, 9, 10, 11, 20)) for name in rng.sample(_GOODS, rng.randint(0, 4))
    },
    "stock": lambda rng: {name: rng.randint(0, 25) for name in rng.sample(_GOODS, rng.randint(2, 5))},
    # calendar
    "time": lambda rng: repr(_time(rng)),
    "any_time": lambda rng: repr(_time(rng, 0, 23)),
    "minute": lambda rng: rng.randint(0, 1439),
    "spans": lambda rng: [tuple(sorted(rng.sample(range(20), 2))) for _ in range(4)],
    "booking": lambda rng: ("09:30", _time(rng, 10)),
    "bookings": _bookings,
    "length": lambda rng: rng.choice((15, 30, 60, 120)),
    # marks
    "mark": lambda rng: rng.randint(0, 20),
    "points": lambda rng: _points(rng, 0, 6),
    "pupils": lambda rng: {name: _points(rng, 1, 5) for name in rng.sample(_PUPILS, rng.randint(1, 4))},
    # search
    "text": lambda rng: repr(rng.choice(_TEXTS)),
    "texts": lambda rng: rng.sample(_TEXTS, rng.randint(0, 5)),
    "two_terms": lambda rng: _terms(rng, 2),
    "three_terms": lambda rng: _terms(rng, 3),
    # accounts
    "amount": lambda rng: rng.randint(0, 110),
    "balance": lambda rng: rng.randint(-60, 60),
    "small_amount": lambda rng: rng.randint(-2, 60),
    "below_100": lambda rng: rng.randint(0, 99),
    "up_to_60": lambda rng: rng.randint(0, 60),
    "name": lambda rng: repr(rng.choice(_OWNERS)),
    "move": lambda rng: (_moves(rng) or [("ann", "cy", 50)])[0],
    "moves": _moves,
}
"""Kinds of arguments by name, each a function of a random generator."""

_FILE: Final = packaged(__package__, "themes.toml")
THEMES: Final[Mapping[str, Theme]] = {name: Theme(**fields) for name, fields in _FILE.items()}
"""Themes by name."""
