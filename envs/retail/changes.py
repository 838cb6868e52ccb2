"""Draws requests that end in a change of an order or of an address."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentgym.envs.domains.database import Record
from agentgym.envs.domains.task import GoldAction
from agentgym.envs.retail.request import (
    TO_CANCEL,
    TO_RETURN,
    Request,
    address_text,
    ids_about,
    item_texts,
    method_texts,
    named,
    order_texts,
    spelled,
)
from agentgym.envs.retail.shop import Shop, drawn_address
from agentgym.envs.retail.tools import REASONS

_WHY = {"no longer needed": "I no longer need it.", "ordered by mistake": "I ordered it by mistake."}


def look_up(order: Record, *product_ids: str) -> tuple[GoldAction, ...]:
    """Return the calls that show an order and products."""
    shown = [GoldAction("get_order_details", {"order_id": order["order_id"]})]
    return (*shown, *(GoldAction("get_product_details", {"product_id": product_id}) for product_id in product_ids))


def cancel(shop: Shop, order: Record, rng: random.Random) -> Request:
    """Cancel a pending order."""
    reason = rng.choice(REASONS)
    call = GoldAction("cancel_pending_order", {"order_id": order["order_id"], "reason": reason})
    return Request(
        kind="cancel",
        wish=f"I would like to cancel {named(order)}.",
        facts={"order": spelled(order), "reason": _WHY[reason]},
        consents=[(TO_CANCEL, order_texts(order))],
        ids=ids_about(order),
        proposal=f"I will cancel order {order['order_id']} (reason: {reason}); what you paid is refunded.",
        actions=(*look_up(order), call),
    )


def give_back(shop: Shop, order: Record, rng: random.Random) -> Request:
    """Return an item of a delivered order, with a refund that the policy allows."""
    item, method = rng.choice(order["items"]), _refund_method(shop, order, rng)
    return _return(order, item, method, wish=f"I want to return the {item['name'].lower()} that I received.")


def give_back_elsewhere(shop: Shop, order: Record, rng: random.Random) -> Request | None:
    """Return an item with a refund that the policy forbids and, once it is refused, with an allowed one."""
    paid_by = order["payment_history"][0]["payment_method_id"]
    methods = shop.customer["payment_methods"]
    forbidden = [one for one in methods.values() if one["source"] != "gift_card" and one["id"] != paid_by]
    if not forbidden:
        return None
    item, method, wrong = rng.choice(order["items"]), methods[paid_by], rng.choice(forbidden)
    request = _return(
        order,
        item,
        method,
        wish=f"I want to return the {item['name'].lower()} and get the money on my {method_texts(wrong)[0]}.",
    )
    return replace(
        request,
        kind="return elsewhere",
        facts={**request.facts, "payment": f"My {method_texts(wrong)[0]}, please."},
        after_denial=f"All right, then refund it to my {method_texts(method)[0]}, which I paid with.",
        denial=f"I am sorry, a refund cannot go to your {method_texts(wrong)[0]}: only to what you paid with, "
        "or to a gift card. Where would you like it instead?",
    )


def move_order(shop: Shop, order: Record, rng: random.Random) -> Request:
    """Change the address of a pending order."""
    address = drawn_address(rng)
    call = GoldAction("modify_pending_order_address", {"order_id": order["order_id"], **address})
    return Request(
        kind="order address",
        wish=f"Please send {named(order)} to another address.",
        facts={"order": spelled(order), "address": f"The new address is {address_text(address)}."},
        consents=[(order_texts(order), (address["address1"],), (address["zip"],))],
        ids=ids_about(order),
        proposal=f"I will send order {order['order_id']} to {address_text(address)} instead.",
        actions=(*look_up(order), call),
    )


def move_house(shop: Shop, order: Record, rng: random.Random) -> Request:
    """Change the customer's own address."""
    address = drawn_address(rng)
    return Request(
        kind="user address",
        wish="I have moved, so please change the default address of my account.",
        facts={"address": f"My new address is {address_text(address)}."},
        consents=[((address["address1"],), (address["zip"],))],
        proposal=f"I will change your default address to {address_text(address)}.",
        actions=(GoldAction("modify_user_address", {"user_id": shop.customer_id, **address}),),
    )


def pay_otherwise(shop: Shop, order: Record, rng: random.Random) -> Request | None:
    """Change the payment method of a pending order; refused if a gift card does not cover the price."""
    payment = order["payment_history"][0]
    methods = [one for key, one in shop.customer["payment_methods"].items() if key != payment["payment_method_id"]]
    if not methods:
        return None
    method = rng.choice(methods)
    is_short = method["source"] == "gift_card" and method["balance"] < payment["amount"]
    call = GoldAction(
        "modify_pending_order_payment", {"order_id": order["order_id"], "payment_method_id": method["id"]}
    )
    name = method_texts(method)[0]
    common: dict[str, Any] = {
        "wish": f"I would like to pay for {named(order)} with my {name} instead.",
        "facts": {"order": spelled(order), "payment": f"With my {name}."},
        "ids": (*ids_about(order), method["id"]),
    }
    if is_short:
        denial = (
            f"I am sorry, that is not possible: your gift card has {method['balance']:.2f}, which does not cover the "
            f"{payment['amount']:.2f} of order {order['order_id']}."
        )
        user = GoldAction("get_user_details", {"user_id": shop.customer_id})
        return Request(kind="payment refused", denial=denial, actions=(*look_up(order), user), **common)
    return Request(
        kind="payment",
        consents=[(order_texts(order), method_texts(method))],
        proposal=f"I will change the payment of order {order['order_id']} to your {name} ({method['id']}).",
        actions=(*look_up(order), call),
        **common,
    )


def _return(order: Record, item: Record, method: Mapping[str, Any], wish: str) -> Request:
    name = method_texts(method)[0]
    call = GoldAction(
        "return_delivered_order_items",
        {"order_id": order["order_id"], "item_ids": [item["item_id"]], "payment_method_id": method["id"]},
    )
    return Request(
        kind="return",
        wish=wish,
        facts={
            "order": spelled(order),
            "item": f"The {item['name'].lower()}, nothing else.",
            "payment": f"To my {name}, please.",
        },
        consents=[(TO_RETURN, order_texts(order), item_texts(item), method_texts(method))],
        ids=(*ids_about(order), method["id"]),
        proposal=(
            f"I will return the {item['name']} ({item['item_id']}) of order {order['order_id']} and refund your {name} "
            f"({method['id']})."
        ),
        actions=(*look_up(order), call),
    )


def _refund_method(shop: Shop, order: Record, rng: random.Random) -> Mapping[str, object]:
    methods = shop.customer["payment_methods"]
    allowed = {order["payment_history"][0]["payment_method_id"]}
    allowed |= {key for key, method in methods.items() if method["source"] == "gift_card"}
    method: Mapping[str, object] = methods[rng.choice(sorted(allowed))]
    return method
