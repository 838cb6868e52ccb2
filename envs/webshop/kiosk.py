"""Draws a small shop from a seed: few kinds of products, and pages of a few lines, which small models can read."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Final

from agentgym.envs.webshop.catalogue import Catalogue
from agentgym.envs.webshop.product import Product
from agentgym.envs.webshop.vocabulary import Kind, kinds

RESULTS_PER_PAGE: Final = 4
_QUERIES: Final = (
    "toothpaste",
    "lip care",
    "men's polos",
    "women's sweaters",
    "bluetooth speakers",
    "desks",
    "nightstands",
    "beverages",
)
_NUM_ATTRIBUTES = 4
"""Of each sort are known here."""
_NUM_VALUES = 3
"""Of each option, in all products of a kind."""
_MOST_DOLLARS = 95


@lru_cache(maxsize=4)
def kiosk_catalogue(num_products: int, seed: int) -> Catalogue:
    """The small shop of a seed.

    A product has two attributes, both in its name, one price in whole dollars, the options of its kind with three
    values each, and nothing on its sub-pages; its code is a few digits. Products of one name, which differ in price,
    are a family.

    Example:
        >>> product = kiosk_catalogue(200, seed=0).products[0]
        >>> product.asin, product.name, product.price_tag
        ('B079', 'Slim Fit Polo Shirt with Button Closure', '$35.0')
    """
    rng = random.Random(f"webshop kiosk {seed}")
    sold = [kind for kind in kinds() if kind.query in _QUERIES]
    width = len(str(num_products - 1))
    codes = [f"B{number:0{width}}" for number in range(num_products)]
    rng.shuffle(codes)
    products = [_product(rng.choice(sold), code, rng) for code in codes]
    first: dict[str, int] = {}
    families = [first.setdefault(product.name, place) for place, product in enumerate(products)]
    return Catalogue(products, families, RESULTS_PER_PAGE)


def _product(kind: Kind, code: str, rng: random.Random) -> Product:
    is_ = rng.choice(kind.attributes.is_[:_NUM_ATTRIBUTES])
    has = rng.choice(kind.attributes.has[:_NUM_ATTRIBUTES])
    price = float(round(rng.uniform(kind.dollars[0], min(kind.dollars[1], _MOST_DOLLARS))))
    return Product(
        asin=code,
        name=f"{is_.title()} {kind.heads[0]} with {has.title()}",
        category=kind.category,
        query=kind.query,
        product_category=kind.path,
        attributes=(is_, has),
        description="",
        features=(),
        prices=(price,),
        price=price,
        options={option.name: option.values[:_NUM_VALUES] for option in kind.options},
    )
