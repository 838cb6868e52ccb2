"""Reads WebShop's own data, for users who have it: products, their attributes, and the goals made of them.

Files, all in one folder, by their names in princeton-nlp/WebShop:

* ``items_shuffle_1000.json`` or ``items_shuffle.json``: the products;
* ``items_ins_v2_1000.json`` or ``items_ins_v2.json``: attributes, and an instruction for some products;
* ``items_human_ins.json``: instructions that people wrote; without it the goals are the synthetic ones.

Prices within a range and limits on prices, which WebShop draws anew in every process, are drawn here by the product.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from agentgym.envs.webshop.catalogue import Catalogue
from agentgym.envs.webshop.goals import price_limit
from agentgym.envs.webshop.product import Goal, Product
from agentgym.errors import MissingDataError, UsageError, require_known

PRODUCT_FILES: Final = ("items_shuffle_1000.json", "items_shuffle.json")
ATTRIBUTE_FILES: Final = ("items_ins_v2_1000.json", "items_ins_v2.json")
HUMAN_FILE: Final = "items_human_ins.json"

_WHERE = "princeton-nlp/WebShop's setup.sh says where its data is"
_NO_PRICE = 100.0
_SHUFFLE_SEED = 233  # WebShop's
_ASIN_LENGTH = 10
_NUM_TEST, _NUM_VALID = 500, 1_000
_SHARE = 5  # with fewer goals than twice their sum, a fifth is for testing and a fifth for validation


@dataclass(frozen=True)
class OriginalShop:
    """A catalogue and the goals there are for it, in WebShop's shuffled order.

    The first 500 goals are for testing, the next 1,000 for validation, as WebShop's authors split them. With fewer
    than 3,000 goals each has a fifth.
    """

    catalogue: Catalogue
    goals: tuple[Goal, ...]

    def goal_range(self, split: str) -> range:
        """Return the positions of a split's goals.

        Raises:
            UnknownNameError: if there is no such split.
        """
        num_goals = len(self.goals)
        test, valid = _NUM_TEST, _NUM_VALID
        if num_goals < 2 * (test + valid):
            test = valid = num_goals // _SHARE
        bounds = {"test": (0, test), "valid": (test, test + valid), "train": (test + valid, num_goals)}
        require_known("split", split, bounds)
        return range(*bounds[split])


def load_original(data_dir: str | Path, num_products: int | None = None) -> OriginalShop:
    """Read WebShop's data from a folder; all environments of a process share it.

    Args:
        data_dir: the folder with the files.
        num_products: only the first so many products; by default all.

    Raises:
        UsageError: a file is missing or not what it should be; the message says which and what was expected.
    """
    return _loaded(Path(data_dir).expanduser().resolve(), num_products)


@lru_cache(maxsize=2)
def _loaded(folder: Path, num_products: int | None) -> OriginalShop:
    if not folder.is_dir():
        raise MissingDataError(f"WebShop's data folder {str(folder)!r} does not exist; {_WHERE}")
    product_file = _first_of(folder, PRODUCT_FILES)
    records = _read(product_file, list, "a list of products")[:num_products]
    attribute_file, human_file = _first_of(folder, ATTRIBUTE_FILES), folder / HUMAN_FILE
    annotations = _read(attribute_file, dict, "attributes by ASIN")
    products: dict[str, Product] = {}
    for number, record in enumerate(records):
        try:
            asin = record["asin"]
            if asin == "nan" or len(asin) > _ASIN_LENGTH or asin in products:
                continue
            products[asin] = product_of(record, annotations.get(asin, {}).get("attributes", ()))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{product_file}: product {number} is not as WebShop has it: {_problem(error)}") from error
    if human_file.is_file():
        written = _read(human_file, dict, "instructions by ASIN")
        goals = list(_goals(products.values(), human_file, written, _human_wishes))
    else:
        goals = list(_goals(products.values(), attribute_file, annotations, _synthetic_wishes))
    if not goals:
        raise UsageError(f"{folder}: none of the {len(products)} products has an instruction in {HUMAN_FILE} or above")
    random.Random(_SHUFFLE_SEED).shuffle(goals)
    return OriginalShop(Catalogue(tuple(products.values())), tuple(goals))


def product_of(record: Mapping[str, Any], attributes: Sequence[str]) -> Product:
    """Return a product as a line of ``items_shuffle.json`` has it, with its attributes from ``items_ins_v2.json``.

    Example:
        >>> mug = product_of({
        ...     "asin": "B000000001", "name": "Mug", "category": "garden", "query": "Mugs ",
        ...     "product_category": "a › b", "full_description": "", "small_description": ["Blue"],
        ...     "pricing": "$1,008.50$1,020.00",
        ...     "customization_options": {"Size": [{"value": " 8oz/10oz "}], "Color": None},
        ... }, ["dishwasher safe"])
        >>> mug.options, mug.price_tag, mug.query
        ({'size': ('8oz | 10oz',)}, '$1008.5 to $1020.0', 'mugs')
    """
    features = record["small_description"]
    prices = _prices(record.get("pricing"))
    options = {
        name.lower(): tuple(content["value"].strip().replace("/", " | ").lower() for content in contents)
        for name, contents in (record.get("customization_options") or {}).items()
        if contents is not None
    }
    asin = record["asin"]
    return Product(
        asin=asin,
        name=record["name"],
        category=record["category"],
        query=record["query"].lower().strip(),
        product_category=record["product_category"],
        attributes=tuple(attributes),
        description=record["full_description"] or "",
        features=tuple(features if isinstance(features, list) else [features or ""]),
        prices=prices,
        price=prices[0] if len(prices) == 1 else random.Random(f"webshop price {asin}").uniform(*prices),
        options=options,
    )


def _prices(pricing: str | None) -> tuple[float, ...]:
    found = tuple(float(re.sub(r"[^\d.]", "", price)) for price in (pricing or "").split("$")[1:3])
    return found or (_NO_PRICE,)


@dataclass(frozen=True, slots=True)
class _Wish:
    """The wish of one instruction."""

    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]


_WishesOf = Callable[[Product, object], Iterator[_Wish]]


def _goals(
    products: Iterable[Product], path: Path, annotations: Mapping[str, Any], wishes_of: _WishesOf
) -> Iterator[Goal]:
    for product in products:
        if product.asin not in annotations:
            continue
        rng = random.Random(f"webshop limit {product.asin}")
        try:
            wishes = list(wishes_of(product, annotations[product.asin]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{path}: {product.asin} is not as WebShop has it: {_problem(error)}") from error
        for wish in wishes:
            limit, limit_text = price_limit(product.price, rng)
            yield Goal(
                asin=product.asin,
                name=product.name,
                query=product.query,
                product_category=product.product_category,
                instruction=wish.instruction + limit_text,
                attributes=wish.attributes,
                options=wish.options,
                price_upper=limit,
            )


def _human_wishes(product: Product, annotation: Any) -> Iterator[_Wish]:
    for written in annotation:
        if written["instruction_attributes"]:
            yield _Wish(
                written["instruction"].strip("."),
                tuple(written["instruction_attributes"]),
                tuple(written["instruction_options"]),
            )


def _synthetic_wishes(product: Product, annotation: Any) -> Iterator[_Wish]:
    """Yield a wish for every combination of the product's options."""
    instruction = annotation.get("instruction")
    if instruction is None:
        return
    names = sorted(product.options)
    for values in itertools.product(*(product.options[name] for name in names)):
        wanted = ", and ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))
        yield _Wish(
            instruction + (f" with {wanted}" if wanted else ""), tuple(annotation["instruction_attributes"]), values
        )


def _first_of(folder: Path, names: Sequence[str]) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise MissingDataError(f"WebShop's data folder {str(folder)!r} has no {' or '.join(names)}; {_WHERE}")


def _read(path: Path, kind: type, what: str) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON (a pointer to the real file, or cut off?): {error}") from error
    if not isinstance(content, kind):
        raise UsageError(f"{path} holds a {type(content).__name__}, expected {what}")
    return content


def _problem(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
