"""How people name orders, items, addresses and ways to pay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym.envs.domains.database import Record

_SOURCES = {"gift_card": ("gift card",), "paypal": ("paypal account", "paypal"), "credit_card": ("credit card",)}


TO_CANCEL = ("cancel", "cancelled", "canceled", "cancelling", "canceling", "cancellation")
TO_RETURN = ("return", "returned", "returning")


def named(order: Record) -> str:
    """An order by what is in it."""
    return f"the order with the {' and the '.join(item['name'].lower() for item in order['items'])}"


def spelled(order: Record) -> str:
    """An order by its id, as its customer tells it."""
    return f"The order number is {order['order_id']}."


def order_texts(order: Record) -> tuple[str, ...]:
    """What stands for an order in a message."""
    return (order["order_id"], order["order_id"].removeprefix("#"))


def ids_about(order: Record) -> tuple[str, ...]:
    """The ids that may come up when an order is spoken of: its own, and what it was paid with."""
    return (order["order_id"], *(payment["payment_method_id"] for payment in order["payment_history"]))


def item_texts(item: Record) -> tuple[str, ...]:
    """What stands for an item of an order in a message."""
    return (item["name"], item["item_id"])


def method_texts(method: Mapping[str, Any]) -> tuple[str, ...]:
    """What stands for a payment method in a message; a customer has one of each kind."""
    four = (method["last_four"], method["brand"]) if method["source"] == "credit_card" else ()
    return (*_SOURCES[method["source"]], method["id"], *four)


def address_text(address: Mapping[str, str]) -> str:
    """An address on one line."""
    flat = f", {address['address2']}" if address["address2"] else ""
    return f"{address['address1']}{flat}, {address['city']}, {address['state']} {address['zip']}, {address['country']}"


def options_text(options: Mapping[str, str]) -> str:
    """Options in words, such as ``color blue, size M``."""
    return ", ".join(f"{name} {value}" for name, value in options.items())
