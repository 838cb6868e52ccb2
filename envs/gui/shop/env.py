"""``agentgym/WebShopGUI-v0``: the shop of ``agentgym/WebShop-v0`` as a web application in a real browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentgym.call_syntax import format_call
from agentgym.envs.gui.gui_env import GuiEnv
from agentgym.envs.gui.shop.site import Line, Listing, ShopSite
from agentgym.envs.gui.site import Sites
from agentgym.envs.gui.tree import Node, Tree
from agentgym.envs.since_reset import SinceReset
from agentgym.envs.webshop.assortment import Assortment, Stock
from agentgym.envs.webshop.catalogue import Catalogue
from agentgym.envs.webshop.oracle import best_query
from agentgym.envs.webshop.product import Goal, Product
from agentgym.envs.webshop.reward import count_options, score_purchase
from agentgym.types import Message, Task, ToolCall

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
    """Goal of the episode's customer."""

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
        """Return the tasks of the text shop."""
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

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    @property
    def catalogue(self) -> Catalogue:
        """Products of the episode's shop."""
        return self.shop.catalogue

    @property
    def cart(self) -> tuple[Line, ...]:
        """Contents of the episode's cart."""
        return self.shop.cart

    @property
    def order(self) -> tuple[Line, ...]:
        """The order that was made in the episode."""
        return self.shop.order

    def oracle(self) -> Message:
        call = next_call(self.catalogue, self.goal, self.cart, self.page)
        return Message("assistant", format_call(call, self.tools), (call,))


def order_value(goal: Goal, catalogue: Catalogue, order: Sequence[Line]) -> float:
    """WebShop's reward of the best line of an order, divided by the number of its lines.

    Every unrequested line thus lowers the reward, and ordering many things at random does not pay.
    """
    products = catalogue.products
    worth = [
        score_purchase(goal, products[catalogue.place_of(line.asin)], line.options.values()).reward for line in order
    ]
    return max(worth) / len(worth)


# ------------------- the gold policy of the shop in a browser: finds the product that a goal was made from, and buys it


def next_call(catalogue: Catalogue, goal: Goal, cart: Sequence[Line], page: Tree) -> ToolCall:
    """Return the next call towards the goal from the current page, whatever is in the cart."""
    path = urlsplit(page.url).path
    target = catalogue.products[catalogue.place_of(goal.asin)]
    wanted = wanted_options(goal, target)
    if cart:
        return _with_cart(cart, Line(0, target.asin, wanted), path, page)
    if path == f"/product/{target.asin}":
        return _choose(wanted, page)
    if path == "/search":
        return _look_through(catalogue, target, goal, page)
    return _search(catalogue, goal, page)


def wanted_options(goal: Goal, product: Product) -> dict[str, str]:
    """Return a value for each option of a product: the goal's if it names one, else the first."""
    return {
        name: next((value for value in values if value in goal.options), None)
        or next((value for value in values if any(count_options([wish], [value]) for wish in goal.options)), values[0])
        for name, values in product.options.items()
    }


def _with_cart(cart: Sequence[Line], wanted: Line, path: str, page: Tree) -> ToolCall:
    wrong = [line for line in cart if (line.asin, line.options) != (wanted.asin, wanted.options)] or cart[1:]
    if not wrong and path == "/checkout":
        return _click(page.find("button", "Place order"))
    if path != "/cart":
        return ToolCall("goto", {"url": "/cart"}, "0")
    if not wrong:
        return _click(page.find("link", "Go to checkout"))
    return _click(list(page.find_all("button", "Remove"))[list(cart).index(wrong[0])])


def _choose(wanted: Mapping[str, str], page: Tree) -> ToolCall:
    for name, value in wanted.items():
        node = page.find("combobox", name.capitalize())
        if node.states["value"] != value:
            return ToolCall("select", {"id": node.id, "options": [value]}, "0")
    return _click(page.find("button", "Add to cart"))


def _look_through(catalogue: Catalogue, target: Product, goal: Goal, page: Tree) -> ToolCall:
    listing = Listing.of_url(page.url)
    place = catalogue.place_of(target.asin)
    found = listing.places(catalogue)
    if place not in found:
        return _search(catalogue, goal, page)
    at = found.index(place) // catalogue.results_per_page + 1
    if at != listing.page:
        return _click(page.find("link", "Next page" if at > listing.page else "Previous page"))
    return _click(_link_above(f"Item {target.asin},", page))


def _link_above(text: str, page: Tree) -> Node:
    """Return the last link before a text, such as an item number, which is unique while product names may be alike."""
    link: Node | None = None
    for node in page.nodes:
        if node.role == "link":
            link = node
        if link is not None and node.role == "text" and node.name.startswith(text):
            return link
    raise LookupError(f"no {text!r} on {page.url}")


def _search(catalogue: Catalogue, goal: Goal, page: Tree) -> ToolCall:
    query = " ".join(best_query(catalogue, goal).split())
    if not any(page.find_all("searchbox")):
        return ToolCall("goto", {"url": "/"}, "0")
    box = page.find("searchbox")
    if box.states.get("value") != query:
        return ToolCall("fill", {"id": box.id, "text": query}, "0")
    return _click(page.find("button", "Search"))


def _click(node: Node) -> ToolCall:
    return ToolCall("click", {"id": node.id}, "0")
