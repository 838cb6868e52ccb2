"""The gold policy of the shop in a browser: finds the product that a goal was made from, and buys it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from agentgym.envs.gui.shop.listing import Listing
from agentgym.envs.gui.shop.site import Line
from agentgym.envs.gui.tree import Node, Tree
from agentgym.envs.webshop.catalogue import Catalogue
from agentgym.envs.webshop.oracle import best_query
from agentgym.envs.webshop.product import Goal, Product
from agentgym.envs.webshop.reward import count_options
from agentgym.types import ToolCall


def next_call(catalogue: Catalogue, goal: Goal, cart: Sequence[Line], page: Tree) -> ToolCall:
    """What leads to the goal from the page as it stands, whatever is in the cart."""
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
    """A value for each option of a product: what the goal asks for, else the first."""
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
    """The last link before a text: names of products may be alike, item numbers are not."""
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
