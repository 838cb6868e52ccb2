"""Draws a catalogue from a seed: products of many kinds, and families of near-duplicates that differ in details."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock
from typing import Final

from agentgym.envs.webshop.catalogue import Catalogue
from agentgym.envs.webshop.product import Product
from agentgym.envs.webshop.vocabulary import TEXTS, Kind, Option, kinds
from agentgym.errors import UsageError

MIN_PRODUCTS, MAX_PRODUCTS = 100, 100_000

_VARIANT = 0.3
"""Probability that a product is a variant of one of the last few families."""
_RECENT_FAMILIES = 30
_PRICE_RANGE = 0.25
"""Probability that the page shows a range of prices."""
_OPTION_OFFERED = 0.85
_MOST_VALUES = 8

_ASIN_CHARACTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SYLLABLES: Final = TEXTS["syllables"]
_PURPOSES: Final = TEXTS["purposes"]
_CLAIMS: Final = TEXTS["claims"]
_CLOSINGS: Final = TEXTS["closings"]


def generated_catalogue(num_products: int, seed: int) -> Catalogue:
    """Return the catalogue of a seed; all environments of a process share it.

    Raises:
        UsageError: if the number is out of range.

    Example:
        >>> catalogue = generated_catalogue(200, seed=0)
        >>> len(catalogue.products), generated_catalogue(200, seed=0) is catalogue
        (200, True)
    """
    check_num_products(num_products)
    with _one_at_a_time:
        return _generated(num_products, seed)


_one_at_a_time = Lock()  # threads that need the same catalogue wait for it rather than make it too


def check_num_products(num_products: int) -> None:
    """Refuse a size that no generated catalogue has.

    Raises:
        UsageError: the message says what is allowed.
    """
    is_number = isinstance(num_products, int) and not isinstance(num_products, bool)
    if not is_number or not MIN_PRODUCTS <= num_products <= MAX_PRODUCTS:
        raise UsageError(f"num_products is a whole number from {MIN_PRODUCTS} to {MAX_PRODUCTS}, got {num_products!r}")


@lru_cache(maxsize=4)
def _generated(num_products: int, seed: int) -> Catalogue:
    rng = random.Random(f"webshop catalogue {seed}")
    asins = _asins(rng)
    products: list[Product] = []
    families: list[int] = []
    drafts: list[tuple[int, _Draft]] = []  # of the families' first members
    while len(products) < num_products:
        if drafts and rng.random() < _VARIANT:
            family, original = rng.choice(drafts[-_RECENT_FAMILIES:])
            draft = original.variant(rng)
        else:
            family, draft = len(products), _Draft.drawn(rng)
            drafts.append((family, draft))
        products.append(draft.product(next(asins), rng))
        families.append(family)
    return Catalogue(products, families)


@dataclass(frozen=True, slots=True)
class _Draft:
    """Properties that a family of products shares, and the attributes that tell its members apart."""

    kind: Kind
    brand: str
    head: str
    second_head: str
    purpose: str
    is_: tuple[str, ...]
    has: tuple[str, ...]
    suits: tuple[str, ...]
    dollars: float

    @staticmethod
    def drawn(rng: random.Random) -> _Draft:
        kind = rng.choice(kinds())
        attributes = kind.attributes
        low, high = kind.dollars
        head, second_head = rng.sample(kind.heads, 2)
        return _Draft(
            kind=kind,
            brand="".join(rng.choices(_SYLLABLES, k=rng.randint(2, 3))).capitalize(),
            head=head,
            second_head=second_head,
            purpose=rng.choice(_PURPOSES),
            is_=tuple(rng.sample(attributes.is_, rng.randint(1, 3))),
            has=tuple(rng.sample(attributes.has, rng.randint(1, 2))),
            suits=tuple(rng.sample(attributes.suits, rng.randint(0, 2))),
            dollars=math.exp(rng.uniform(math.log(low), math.log(high))),
        )

    def variant(self, rng: random.Random) -> _Draft:
        """Return another product of the family. Its price differs, and one attribute of each sort may differ."""
        attributes = self.kind.attributes
        return replace(
            self,
            is_=_one_replaced(self.is_, attributes.is_, rng),
            has=_one_replaced(self.has, attributes.has, rng),
            suits=_one_replaced(self.suits, attributes.suits, rng),
            dollars=self.dollars * rng.uniform(0.7, 1.4),
        )

    def product(self, asin: str, rng: random.Random) -> Product:
        kind, attributes = self.kind, (*self.is_, *self.has, *self.suits)
        titled = rng.sample(attributes, min(2, len(attributes)))  # the others appear only on the sub-pages
        others = [attribute for attribute in attributes if attribute not in titled]
        prices = _prices(self.dollars, rng)
        return Product(
            asin=asin,
            name=f"{self.brand} {titled[0].title()} {self.head} for {self.purpose}, "
            f"{' '.join(attribute.title() for attribute in titled[1:])} {self.second_head}",
            category=kind.category,
            query=kind.query,
            product_category=kind.path,
            attributes=attributes,
            description=_description(self.brand, self.head, others[1::2], rng),
            features=tuple(
                f"[{attribute.upper()}]: {rng.choice(_CLAIMS)}" for attribute in (*titled[:1], *others[0::2])
            ),
            prices=prices,
            price=prices[0] if len(prices) == 1 else round(rng.uniform(*prices), 2),
            options=dict(_offered(kind.options, rng)),
        )


def _one_replaced(held: tuple[str, ...], known: tuple[str, ...], rng: random.Random) -> tuple[str, ...]:
    others = [attribute for attribute in known if attribute not in held]
    if not held or not others or rng.random() < 0.5:
        return held
    at = rng.randrange(len(held))
    return (*held[:at], rng.choice(others), *held[at + 1 :])


def _description(brand: str, head: str, attributes: Sequence[str], rng: random.Random) -> str:
    told = "".join(f" {attribute.capitalize()}: {rng.choice(_CLAIMS)}." for attribute in attributes)
    return f"About the {brand} {head}.{told} {' '.join(rng.sample(_CLOSINGS, 2))}"


def _prices(dollars: float, rng: random.Random) -> tuple[float, ...]:
    price = round(math.floor(dollars) + rng.choice((0.99, 0.95, 0.49, 0.0)), 2)
    if rng.random() >= _PRICE_RANGE:
        return (price,)
    return (price, round(price * rng.uniform(1.1, 1.8), 2))


def _offered(options: Sequence[Option], rng: random.Random) -> Iterator[tuple[str, tuple[str, ...]]]:
    for option in options:
        if rng.random() < _OPTION_OFFERED:
            places = rng.sample(range(len(option.values)), rng.randint(2, min(_MOST_VALUES, len(option.values))))
            yield option.name, tuple(option.values[place] for place in sorted(places))


def _asins(rng: random.Random) -> Iterator[str]:
    used: set[str] = set()
    while True:
        asin = "B0" + "".join(rng.choices(_ASIN_CHARACTERS, k=8))
        if asin not in used:
            used.add(asin)
            yield asin
