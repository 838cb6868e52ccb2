"""``agentgym/WebShopGUI-v0``: the shop of ``agentgym/WebShop-v0`` as a web application in a real browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym.call_syntax import format_call
from agentgym.envs.gui.gui_env import GuiEnv
from agentgym.envs.gui.shop.oracle import next_call
from agentgym.envs.gui.shop.store import Line
from agentgym.envs.gui.site import Sites
from agentgym.envs.webshop.assortment import Assortment, Stock
from agentgym.envs.webshop.catalogue import Catalogue
from agentgym.envs.webshop.product import Goal
from agentgym.envs.webshop.reward import score_purchase
from agentgym.errors import EnvError, MissingExtraError, ResetNeededError
from agentgym.types import Message, Task

if TYPE_CHECKING:
    from agentgym.envs.gui.shop.server import ShopServer

HOST = "shop.localhost"


class WebShopGUIEnv(GuiEnv):
    """Buy what an instruction asks for, in a shop with search, filters, product pages, a cart and a checkout.

    Tasks, catalogue and goals are those of :class:`~agentgym.envs.webshop.env.WebShopEnv`. The episode ends with the
    order, whose rows in the shop's database are worth :func:`order_value`; with ``done`` and no order it is worth 0.

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
        self._shop = Assortment(
            num_products=num_products, catalogue_seed=catalogue_seed, stock=stock, data_dir=data_dir
        )
        self._server: ShopServer | None = None
        self._cart_of = ""
        super().__init__(max_turns=max_turns, **options)

    def tasks(self, split: str) -> Sequence[Task]:
        """Those of the text shop."""
        return self._shop.tasks(split)

    # ------------------------------------------------------------------------------------------------- an episode

    def sites(self, task: Task) -> Sites:
        self._leave_shop()
        self._catalogue, self._goal = self._shop.catalogue(task), self._shop.goal(task)
        self._server = _running_server()
        self._cart_of = self._server.open(self._catalogue)
        return {HOST: self._server.address}

    def start_url(self, task: Task) -> str:
        from agentgym.envs.gui.shop.server import entrance

        return f"http://{HOST}{entrance(self._cart_of)}"

    async def set_up(self, task: Task) -> str:
        return f"Buy this in the shop, one piece, and nothing else:\n{self._goal.instruction}"

    async def score(self) -> float | None:
        if failure := self.server.failures.get(self._cart_of):
            raise EnvError(f"{self.env_id}: the shop failed: {failure}")
        order = self.order
        if order:
            return order_value(self._goal, self._catalogue, order)
        return None if self.answer is None else 0.0

    def hidden_state(self) -> object:
        lines = [*self.cart, *self.order]
        return [self._goal.asin, self._goal.instruction, [[line.asin, dict(line.options)] for line in lines]]

    def stop(self) -> None:
        super().stop()
        self._leave_shop()

    def _leave_shop(self) -> None:
        if self._server is not None:
            self._server.close(self._cart_of)

    # ----------------------------------------------------------------------------------------- beside gymnasium's

    @property
    def server(self) -> ShopServer:
        """The application, which all episodes of the process share."""
        if self._server is None:
            raise ResetNeededError(f"{self.env_id}: no customer before reset()")
        return self._server

    @property
    def goal(self) -> Goal:
        """What the episode's customer wants."""
        self.server  # noqa: B018  (raises before reset)
        return self._goal

    @property
    def catalogue(self) -> Catalogue:
        """What the episode's shop sells."""
        self.server  # noqa: B018
        return self._catalogue

    @property
    def cart(self) -> tuple[Line, ...]:
        """What is in the episode's cart, by the database."""
        return self.server.store.cart(self._cart_of)

    @property
    def order(self) -> tuple[Line, ...]:
        """What was ordered in the episode, by the database."""
        return self.server.store.order(self._cart_of)

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


def _running_server() -> ShopServer:
    try:
        from agentgym.envs.gui.shop.server import shop_server
    except ModuleNotFoundError as error:
        raise MissingExtraError("the shop's server", "gui,serve") from error
    return shop_server()
