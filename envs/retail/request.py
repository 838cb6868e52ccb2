"""Customers' requests: one of a task, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from agentgym.envs.domains.database import Record
from agentgym.envs.domains.task import GoldAction

Consent = Sequence[Sequence[str]]
"""Groups of texts; a proposal is agreed to if it holds one text of every group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One thing that a customer wants, what they know of it, and when they say yes.

    Exactly one of three outcomes is right: a change that the customer agreed to (``proposal``), a refusal that is right
    (``denial`` without a ``proposal``), or being told something (``answers``). A transfer ends the conversation.
    """

    kind: str
    wish: str
    """First message of the customer."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Answers of the customer, by what is asked for."""
    consents: Sequence[Consent] = ()
    """The proposals that the customer agrees to."""
    ids: Sequence[str] = ()
    """The ids of orders and payment methods that may come up in a proposal; others make the customer say no."""
    answers: Sequence[str] = ()
    """Texts that the customer wants to be told."""
    after_denial: str = ""
    """Message of the customer after the first refusal, if they have a second wish."""
    takes_refusal: bool = False
    """True if the customer accepts a refusal, since they cannot know that it is wrong."""
    denial: str = ""
    """Refusal by the gold policy, if the first wish must be refused."""
    proposal: str = ""
    """Message of the gold policy before the change."""
    actions: Sequence[GoldAction] = ()
    """The gold calls; look-ups come first."""
    is_transfer: bool = False

    def as_data(self) -> dict[str, object]:
        """Return the request as a task's ``script`` holds it."""
        return asdict(self)


def request_of_data(data: Mapping[str, Any]) -> Request:
    """Return the request that :meth:`Request.as_data` gave, also after a round trip through JSON."""
    actions = tuple(GoldAction(one["name"], one["arguments"]) for one in data["actions"])
    return Request(**{**data, "actions": actions})


# ---------------------------------------------------- names of orders, items, addresses and payment methods in messages

_SOURCES = {"gift_card": ("gift card",), "paypal": ("paypal account", "paypal"), "credit_card": ("credit card",)}


TO_CANCEL = ("cancel", "cancelled", "canceled", "cancelling", "canceling", "cancellation")
TO_RETURN = ("return", "returned", "returning")


def named(order: Record) -> str:
    """Return an order named by its contents."""
    return f"the order with the {' and the '.join(item['name'].lower() for item in order['items'])}"


def spelled(order: Record) -> str:
    """Return an order by its id, as its customer tells it."""
    return f"The order number is {order['order_id']}."


def order_texts(order: Record) -> tuple[str, ...]:
    """Return the texts that stand for an order in a message."""
    return (order["order_id"], order["order_id"].removeprefix("#"))


def ids_about(order: Record) -> tuple[str, ...]:
    """Return the ids that messages about an order may contain: its own and those of its payment methods."""
    return (order["order_id"], *(payment["payment_method_id"] for payment in order["payment_history"]))


def item_texts(item: Record) -> tuple[str, ...]:
    """Return the texts that stand for an item of an order in a message."""
    return (item["name"], item["item_id"])


def method_texts(method: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the texts that stand for a payment method in a message; a customer has one of each kind."""
    four = (method["last_four"], method["brand"]) if method["source"] == "credit_card" else ()
    return (*_SOURCES[method["source"]], method["id"], *four)


def address_text(address: Mapping[str, str]) -> str:
    """Return an address on one line."""
    flat = f", {address['address2']}" if address["address2"] else ""
    return f"{address['address1']}{flat}, {address['city']}, {address['state']} {address['zip']}, {address['country']}"


def options_text(options: Mapping[str, str]) -> str:
    """Options in words, such as ``color blue, size M``."""
    return ", ".join(f"{name} {value}" for name, value in options.items())
