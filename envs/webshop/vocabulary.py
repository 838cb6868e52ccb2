"""Products of the generated shop: their kinds with WebShop's attributes, category paths and options.

Departments, queries and most of the attributes are words of WebShop's data: queries such as ``women's loafers &
slip-ons``, attributes such as ``easy clean``. They are in ``vocabulary.json``, beside this file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Final

from agentgym.canonical import packaged

_FILE: Final = packaged(__package__, "vocabulary.json")
TEXTS: Final[Mapping[str, Sequence[str]]] = _FILE["texts"]
"""Words and sentences by their use."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes of products, by the words an instruction has for them: "``is_`` desks with ``has`` for ``suits``"."""

    is_: tuple[str, ...]
    has: tuple[str, ...]
    suits: tuple[str, ...]

    def __iter__(self) -> Iterator[str]:
        return chain(self.is_, self.has, self.suits)


@dataclass(frozen=True, slots=True)
class Option:
    """A choice that a customer has.

    Example:
        >>> next(kind for kind in kinds() if kind.query == "beds").options[1]
        Option(name='size', values=('twin', 'twin xl', 'full', 'queen', 'king', 'california king'))
    """

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of product."""

    query: str
    category: str
    path: str
    """Path of categories, joined by ``›``."""
    heads: tuple[str, ...]
    """Names of one thing of this kind."""
    attributes: Attributes
    options: tuple[Option, ...]
    dollars: tuple[float, float]
    """Lowest and highest price in dollars."""


@cache
def kinds() -> tuple[Kind, ...]:
    """Return all kinds of products.

    Example:
        >>> len(kinds()), len({kind.category for kind in kinds()})
        (52, 5)
    """
    attributes = {
        name: Attributes(tuple(group["is"]), tuple(group["has"]), tuple(group["suits"]))
        for name, group in _FILE["attributes"].items()
    }
    options = {name: Option(option["name"], tuple(option["values"])) for name, option in _FILE["options"].items()}
    return tuple(
        Kind(
            query=kind["query"],
            category=kind["category"],
            path=kind["path"],
            heads=tuple(kind["heads"]),
            attributes=attributes[kind["attributes"]],
            options=tuple(options[name] for name in kind["options"]),
            dollars=(kind["dollars"][0], kind["dollars"][1]),
        )
        for kind in _FILE["kinds"]
    )
