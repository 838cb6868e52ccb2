"""A shop's products and its customers' goals: generated from a seed, or WebShop's own files."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from agentgym.env.tasks import SeededTasks
from agentgym.envs.webshop import original
from agentgym.envs.webshop.catalogue import Catalogue
from agentgym.envs.webshop.generator import check_num_products, generated_catalogue
from agentgym.envs.webshop.goals import goal_of_seed
from agentgym.envs.webshop.product import Goal, Product
from agentgym.envs.webshop.vocabulary import TEXTS, Kind, kinds
from agentgym.errors import UsageError, require_known
from agentgym.types import Task

Stock = Literal["mall", "kiosk"]
STOCKS = ("mall", "kiosk")
_KNOBS = ("num_products", "catalogue_seed", "stock")


class Assortment:
    """The tasks of a shop, and the catalogue and the goal of each.

    Args:
        num_products: size of the generated catalogue, 100 to 100,000; with ``data_dir``, the number that is read.
        catalogue_seed: the seed of the generated catalogue.
        stock: what is generated, ``mall`` or ``kiosk``.
        data_dir: folder with WebShop's own files.

    Raises:
        UsageError: if a value is out of range or a file is missing; the message says what was expected.

    Example:
        >>> shop = Assortment(num_products=200)
        >>> task = shop.tasks("train")[1]
        >>> shop.goal(task).asin in {product.asin for product in shop.catalogue(task).products}
        True
    """

    def __init__(
        self,
        *,
        num_products: int | None = None,
        catalogue_seed: int = 0,
        stock: Stock = "mall",
        data_dir: str | Path | None = None,
    ) -> None:
        self._original = None if data_dir is None else original.load_original(data_dir, num_products)
        require_known("stock", stock, STOCKS)
        self._knobs: dict[str, Any] = {
            "num_products": 1_000 if num_products is None else num_products,
            "catalogue_seed": catalogue_seed,
            **({} if stock == "mall" else {"stock": stock}),
        }
        if data_dir is None:
            check_num_products(self._knobs["num_products"])

    def tasks(self, split: str) -> Sequence[Task]:
        """1,000,000 to train on, 1,000 to validate, 1,000 to test, or the goals that WebShop's files have."""
        if self._original is not None:
            return _original_tasks(self._original, split)
        return SeededTasks(split, 1_000_000 if split == "train" else 1_000, self._knobs)

    def catalogue(self, task: Task) -> Catalogue:
        """Return the catalogue that a task's data names; this shop's values replace those that it omits.

        Raises:
            UnknownNameError: the task's data names something else.
        """
        if self._original is not None:
            return self._original.catalogue
        for name in task.data:
            require_known("WebShop task data", name, _KNOBS)
        named: dict[str, Any] = {**self._knobs, **task.data}
        stock = named.get("stock", "mall")
        require_known("stock", stock, STOCKS)
        make = kiosk_catalogue if stock == "kiosk" else generated_catalogue
        return make(named["num_products"], named["catalogue_seed"])

    def goal(self, task: Task) -> Goal:
        """Return the goal of a task's customer.

        Raises:
            UsageError: with WebShop's files, the task names no goal of them.
        """
        if self._original is not None:
            return _original_goal(self._original, task)
        return goal_of_seed(self.catalogue(task), task.split, task.seed)


def _original_tasks(shop: original.OriginalShop, split: str) -> Sequence[Task]:
    return tuple(
        Task(
            id=f"goal-{number}",
            split=split,
            seed=number,
            data={"goal": number, "instruction": shop.goals[number].instruction},
        )
        for number in shop.goal_range(split)
    )


def _original_goal(shop: original.OriginalShop, task: Task) -> Goal:
    number = task.data.get("goal")
    if not isinstance(number, int) or not 0 <= number < len(shop.goals):
        raise UsageError(
            f"task {task.id!r} names no goal of this data: its data holds the number of a goal, 0 to "
            f"{len(shop.goals) - 1}; take tasks from this environment's tasks(split)"
        )
    return shop.goals[number]


# --------- draws a small shop from a seed: few kinds of products, and pages of a few lines, which small models can read

RESULTS_PER_PAGE: Final = 4
_QUERIES: Final = TEXTS["kiosk_queries"]
_NUM_ATTRIBUTES = 4
"""Number of attributes of each sort in the kiosk."""
_NUM_VALUES = 3
"""Number of values of each option, over all products of a kind."""
_MOST_DOLLARS = 95


@lru_cache(maxsize=4)
def kiosk_catalogue(num_products: int, seed: int) -> Catalogue:
    """Return the small shop of a seed.

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
