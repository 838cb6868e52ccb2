"""Draw a goal from a seed: a product of the catalogue, some of its attributes and options, and a price limit.

The split of a goal is that of its product's family, by a digest of the ASIN, so that no product, and no near-duplicate
of one, is asked for in two splits.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from agentgym.envs.splits import is_byte_in_split
from agentgym.envs.webshop.catalogue import Catalogue
from agentgym.envs.webshop.product import NO_PRICE_LIMIT, Goal, Product
from agentgym.envs.webshop.vocabulary import TEXTS, Attributes, kinds

_MOST_ATTRIBUTES = 3
_OPTION_WANTED = 0.75
_OPENINGS: Final = TEXTS["openings"]
_LIMITS: Final = tuple(10.0 * step for step in range(1, 100))


def goal_of_seed(catalogue: Catalogue, split: str, seed: int) -> Goal:
    """Return the goal of a seed, a function of the arguments alone.

    Raises:
        UnknownNameError: if there is no such split.

    Example:
        >>> from agentgym.envs.webshop.generator import generated_catalogue
        >>> goal_of_seed(generated_catalogue(200, seed=0), "train", 1) == goal_of_seed(
        ...     generated_catalogue(200, seed=0), "train", 1
        ... )
        True
    """
    rng = random.Random(f"webshop goal {seed}")
    product = catalogue.products[rng.choice(places_of_split(catalogue, split))]
    attributes = rng.sample(product.attributes, rng.randint(1, min(_MOST_ATTRIBUTES, len(product.attributes))))
    options = {name: rng.choice(values) for name, values in product.options.items() if rng.random() < _OPTION_WANTED}
    limit, limit_text = price_limit(product.price, rng)
    return Goal(
        asin=product.asin,
        name=product.name,
        query=product.query,
        product_category=product.product_category,
        instruction=_wording(product, attributes, options, rng) + limit_text,
        attributes=tuple(attributes),
        options=tuple(options.values()),
        price_upper=limit,
    )


@lru_cache(maxsize=12)  # three splits of each cached catalogue
def places_of_split(catalogue: Catalogue, split: str) -> tuple[int, ...]:
    """Return the positions of the products that a split's goals ask for."""
    return tuple(
        place
        for place, family in enumerate(catalogue.families)
        if is_byte_in_split(_byte_of(catalogue.products[family].asin), split)
    )


def price_limit(price: float, rng: random.Random) -> tuple[float, str]:
    """Return a limit above a price and how an instruction words it: the larger of two of the next four multiples of 10.

    Above 980 dollars there is no limit, as in WebShop.

    Example:
        >>> price_limit(985.0, random.Random(0))
        (1000000.0, '')
    """
    above = [limit for limit in _LIMITS if limit > price][:4]
    if len(above) < 2:
        return NO_PRICE_LIMIT, ""
    limit = max(rng.sample(above, 2))
    return limit, f", and price lower than {limit:.2f} dollars"


def _wording(product: Product, attributes: Sequence[str], options: Mapping[str, str], rng: random.Random) -> str:
    known = _attributes_by_query()[product.query]
    is_ = [attribute for attribute in attributes if attribute in known.is_]
    has = [attribute for attribute in attributes if attribute in known.has]
    suits = [attribute for attribute in attributes if attribute not in known.is_ and attribute not in known.has]
    words = [rng.choice(_OPENINGS)]
    if is_:
        words.append(", ".join(is_))
    words.append(product.query)
    if has:
        words.append(f"with {' and '.join(has)}")
    if suits:
        words.append(f"for {' and '.join(suits)}")
    wanted = ", and ".join(f"{name}: {value}" for name, value in options.items())
    return " ".join(words) + (f" with {wanted}" if wanted else "")


@lru_cache(maxsize=1)
def _attributes_by_query() -> Mapping[str, Attributes]:
    return {kind.query: kind.attributes for kind in kinds()}


def _byte_of(asin: str) -> int:
    return hashlib.blake2b(asin.encode(), digest_size=1).digest()[0]
