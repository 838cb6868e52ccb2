"""The gold policy of the shop, by the pages that django-oscar shows."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from agentgym.envs.gui.tree import Tree
from agentgym.types import ToolCall


def next_call(task: str, values: Mapping[str, Any], page: Tree, database: Path) -> ToolCall:
    """Return the next call, by the page and, for what pages do not say, the database."""
    if task == "price":
        return _call("done", answer=values["product_price"])
    done = {"basket": "basket_line", "order": "order_line", "review": "reviews_productreview"}[task]
    if task == "review" and _count(database, done):
        return _call("done", answer="")
    if task == "basket" and _count(database, done):
        return _in_basket(str(values["quantity"]), page)
    if task == "order" and (_count(database, done) or _count(database, "basket_line")):
        return _order(values, page, bool(_count(database, done)))
    if "/reviews/add/" in page.url:
        return _review(values, page)
    if any(page.find_all("heading", values["product_title"])):
        return _on_product(task, values, page)
    return _search(values["product_title"], page)


def _search(title: str, page: Tree) -> ToolCall:
    if "/search/" in page.url:
        return _click(page, "link", title)
    box = page.find("textbox", "Search")
    if box.states.get("value") != title:
        return _call("fill", id=box.id, text=title)
    return _click(page, "button", "Search")


def _on_product(task: str, values: Mapping[str, object], page: Tree) -> ToolCall:
    if task == "review":
        return _click(page, "link", "Write a review")
    return _click(page, "button", "Add to basket")


def _in_basket(quantity: str, page: Tree) -> ToolCall:
    if not page.url.endswith("/basket/"):
        return _call("goto", url="/basket/")
    box = page.find("spinbutton")
    if box.states.get("value") == quantity:
        return _click(page, "button", "Update") if "focused" in box.states else _call("done", answer="")
    return _call("fill", id=box.id, text=quantity)


def _review(values: Mapping[str, Any], page: Tree) -> ToolCall:
    fields = [("Title", "headline"), ("Body", "body"), ("Name", "name"), ("Email", "email")]
    if missing := _fill(fields, values, page):
        return missing
    if any("focused" in node.states for node in page.find_all("textbox")):  # a click on a star takes the focus away
        stars = [node for node in page.find_all("clickable") if "leave-a-product-review" in node.id]
        return _call("click", id=stars[values["score"] - 1].id)
    return _click(page, "button", "Save review")


def _order(values: Mapping[str, object], page: Tree, is_placed: bool) -> ToolCall:
    if is_placed:
        return _call("done", answer="")
    if "/checkout/preview" in page.url or any(page.find_all("button", "Place order")):
        return _click(page, "button", "Place order")
    if "/checkout/shipping-address" in page.url:
        fields = [("First name", "first"), ("Last name", "last"), ("First line of address", "street")]
        fields += [("City", "city"), ("Post/Zip-code", "postcode")]
        return _fill(fields, values, page) or _click(page, "button", "Continue")
    if "/checkout/payment-details" in page.url:
        return _click(page, "link", "Continue")
    if page.url.endswith("/checkout/"):
        guest = next(node for node in page.find_all("radio") if "guest" in node.name)
        if not guest.states["checked"]:
            return _call("check", id=guest.id)
        return _fill([("My email address is", "email")], values, page) or _click(page, "button", "Continue")
    return _call("goto", url="/checkout/")


def _fill(fields: Sequence[tuple[str, str]], values: Mapping[str, object], page: Tree) -> ToolCall | None:
    """Return the first text box that does not hold what it should."""
    for label, name in fields:
        boxes = [node for node in page.nodes if node.role == "textbox" and node.name.rstrip(" *").startswith(label)]
        if not boxes:
            raise LookupError(f"no box {label!r}; there are {[n.name for n in page.find_all('textbox')]}")
        if boxes[0].states.get("value") != values[name]:
            return _call("fill", id=boxes[0].id, text=values[name])
    return None


def _click(page: Tree, role: str, name: str) -> ToolCall:
    return _call("click", id=page.find(role, name).id)


def _call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(name, arguments, "0")


def _count(database: Path, table: str) -> int:
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as shop:
        count: int = shop.execute(f"select count(*) from {table}").fetchone()[0]
        return count
