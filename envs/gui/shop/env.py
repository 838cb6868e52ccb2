"""``agentgym/WebShopGUI-v0``: the shop of ``agentgym/WebShop-v0`` as a web application in a real browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgym.call_syntax import format_call
from agentgym.envs.gui.gui_env import GuiEnv
from agentgym.envs.gui.shop.oracle import next_call
from agentgym.envs.gui.shop.site import Line, ShopSite
from agentgym.envs.gui.site import Sites
from agentgym.envs.since_reset import SinceReset
from agentgym.envs.webshop.assortment import Assortment, Stock
from agentgym.envs.webshop.catalogue import Catalogue
from agentgym.envs.webshop.product import Goal
from agentgym.envs.webshop.reward import score_purchase
from agentgym.types import Message, Task

HOST = "shop.localhost"


class WebShopGUIEnv(GuiEnv):
    """Buy what an instruction asks for, in a shop with search, filters, product pages, a cart and a checkout.

    Tasks, catalogue and goals are those of :class:`~agentgym.envs.webshop.env.WebShopEnv`. The episode ends with the
    order, which is worth :func:`order_value`; with ``done`` and no order it is worth 0.

    Args:
        num_products: size of the generated catalogue, 100 to 100,000; with ``data_dir``, only the first so many.
        catalogue_seed: the seed of the generated catalogue.
        stock: ``mall`` for 52 kinds of products, ``kiosk`` for eight and short pages.
        data_dir: folder with WebShop's own files.
        max_turns: turns after which an episode is truncated.
        options: those of :class:`~agentgym.envs.gui.gui_env.GuiEnv`.

    Raises:
        UsageError: if a value is out of range or a file is missing; the message says what was expected.
    """

    shop = SinceReset[ShopSite]()
    """The shop of the current episode."""
    goal = SinceReset[Goal]()
    """What the episode's customer wants."""

    def __init__(
        self,
        *,
        num_products: int | None = None,
        catalogue_seed: int = 0,
        stock: Stock = "mall",
        data_dir: str | Path | None = None,
        max_turns: int = 30,
        **options: Any,
    ) -> None:
        self._assortment = Assortment(
            num_products=num_products, catalogue_seed=catalogue_seed, stock=stock, data_dir=data_dir
        )
        super().__init__(max_turns=max_turns, **options)

    def tasks(self, split: str) -> Sequence[Task]:
        """Those of the text shop."""
        return self._assortment.tasks(split)

    # ------------------------------------------------------------------------------------------------- an episode

    def sites(self, task: Task) -> Sites:
        self.goal, self.shop = self._assortment.goal(task), ShopSite(self._assortment.catalogue(task))
        return {HOST: self.shop}

    async def set_up(self, task: Task) -> str:
        return f"Buy this in the shop, one piece, and nothing else:\n{self.goal.instruction}"

    async def score(self) -> float | None:
        if self.order:
            return order_value(self.goal, self.catalogue, self.order)
        return None if self.answer is None else 0.0

    def hidden_state(self) -> object:
        lines = [*self.cart, *self.order]
        return [self.goal.asin, self.goal.instruction, [[line.asin, dict(line.options)] for line in lines]]

    # ----------------------------------------------------------------------------------------- beside gymnasium's

    @property
    def catalogue(self) -> Catalogue:
        """What the episode's shop sells."""
        return self.shop.catalogue

    @property
    def cart(self) -> tuple[Line, ...]:
        """What is in the episode's cart."""
        return self.shop.cart

    @property
    def order(self) -> tuple[Line, ...]:
        """What was ordered in the episode."""
        return self.shop.order

    def oracle(self) -> Message:
        call = next_call(self.catalogue, self.goal, self.cart, self.page)
        return Message("assistant", format_call(call, self.tools), (call,))


def order_value(goal: Goal, catalogue: Catalogue, order: Sequence[Line]) -> float:
    """WebShop's reward of the best line of an order, divided by how many lines there are.

    So what was not asked for costs, and ordering many things at random does not pay.
    """
    products = catalogue.products
    worth = [
        score_purchase(goal, products[catalogue.place_of(line.asin)], line.options.values()).reward for line in order
    ]
    return max(worth) / len(worth)
