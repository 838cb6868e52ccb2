"""Draws requests that change nothing: questions, what the policy forbids, and what only a person can settle."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from agentgym.envs.domains.database import Record
from agentgym.envs.domains.task import GoldAction
from agentgym.envs.retail.changes import look_up
from agentgym.envs.retail.request import Request, ids_about, named, spelled
from agentgym.envs.retail.shop import Shop

_BAD_REASONS = ("I found it cheaper somewhere else", "the delivery takes too long", "I do not like the colour any more")
_FOR_A_PERSON = (
    "A parcel came damaged and I want a compensation from the shop.",
    "I would like to open a business account with invoices.",
    "I want to make a complaint about your courier, and speak to a person.",
)


@dataclass(frozen=True, slots=True)
class _Question:
    wish: str
    answer: str
    text: str
    call: GoldAction


def balance(shop: Shop, order: Record, rng: random.Random) -> Request:
    """Ask how much is left on a gift card."""
    card = next(one for one in shop.customer["payment_methods"].values() if one["source"] == "gift_card")
    answer = f"{card['balance']:.2f}"
    call = GoldAction("get_user_details", {"user_id": shop.customer_id})
    return _asked(_Question("How much is left on my gift card?", answer, f"Your gift card holds {answer}.", call))


def variants_left(shop: Shop, order: Record, rng: random.Random) -> Request:
    """Ask how many variants of a product are available."""
    product = shop.tables["products"][rng.choice(order["items"])["product_id"]]
    num_left = sum(variant["available"] for variant in product["variants"].values())
    answer, name = f"{num_left} variant", product["name"].lower()
    text = f"{answer}{'' if num_left == 1 else 's'} of the {name} can be had now."
    call = GoldAction("get_product_details", {"product_id": product["product_id"]})
    wish = f"How many variants of the {name} are available now? Please answer like '3 variants'."
    return replace(_asked(_Question(wish, answer, text, call)), kind="count")


def tracking(shop: Shop, order: Record, rng: random.Random) -> Request:
    """Return the tracking number of an order that was sent."""
    answer = order["fulfillments"][0]["tracking_id"][0]
    text = f"The tracking number of order {order['order_id']} is {answer}."
    question = _Question(f"What is the tracking number of {named(order)}?", answer, text, look_up(order)[0])
    return _asked(question, order)


def cancel_too_late(shop: Shop, order: Record, rng: random.Random) -> Request:
    """Cancel an order that was processed or delivered."""
    status = order["status"]
    return Request(
        kind="cancel too late",
        wish=f"I would like to cancel {named(order)}.",
        facts={"order": spelled(order), "reason": "I no longer need it."},
        answers=(status,),
        denial=f"I am sorry, order {order['order_id']} is already {status}, so it cannot be cancelled.",
        actions=look_up(order),
    )


def return_too_early(shop: Shop, order: Record, rng: random.Random) -> Request:
    """Return an item of an order that was not delivered yet."""
    item, status = rng.choice(order["items"]), order["status"]
    return Request(
        kind="return too early",
        wish=f"I want to return the {item['name'].lower()} that I ordered.",
        facts={"order": spelled(order), "item": f"The {item['name'].lower()}.", "payment": "To what I paid with."},
        answers=(status,),
        denial=f"I am sorry, order {order['order_id']} is still {status}, so nothing of it can be returned yet.",
        actions=look_up(order),
    )


def cancel_for_nothing(shop: Shop, order: Record, rng: random.Random) -> Request:
    """Cancel a pending order for a reason that does not count."""
    reason = rng.choice(_BAD_REASONS)
    return Request(
        kind="cancel for another reason",
        wish=f"I would like to cancel {named(order)}, because {reason}.",
        facts={"order": spelled(order), "reason": f"As I said: {reason}. It is the only reason."},
        denial=(
            "I am sorry, that is not a reason for which an order can be cancelled: only one that is no longer needed "
            "or was ordered by mistake."
        ),
        actions=look_up(order),
    )


def other_product(shop: Shop, order: Record, rng: random.Random) -> Request:
    """Exchange an item for another product."""
    item = rng.choice(order["items"])
    names = sorted(one["name"] for one in shop.tables["products"].values() if one["name"] != item["name"])
    wanted = rng.choice(names).lower()
    return Request(
        kind="another product",
        wish=f"I would like to swap the {item['name'].lower()} of my order for a {wanted}.",
        facts={"order": spelled(order), "item": f"The {item['name'].lower()}.", "options": f"Any {wanted} will do."},
        denial=f"I am sorry, I cannot swap the {item['name']} for another product, only for another variant of it.",
        actions=look_up(order),
    )


def others_order(shop: Shop, order: Record, rng: random.Random) -> Request | None:
    """Cancel somebody else's order."""
    others = [one for one in shop.tables["orders"].values() if one["user_id"] != shop.customer_id]
    if not others:
        return None
    other = rng.choice(others)
    return Request(
        kind="another's order",
        wish=f"Please also cancel order {other['order_id']}. It is a friend's, who asked me to.",
        facts={"order": spelled(other), "reason": "It is no longer needed."},
        ids=ids_about(other),
        denial="I am sorry, I can help you with your own orders only, so I cannot do that.",
    )


def person(shop: Shop, order: Record, rng: random.Random) -> Request:
    """Something that only a person can settle: the conversation ends with the transfer."""
    wish = rng.choice(_FOR_A_PERSON)
    return Request(
        kind="a person",
        wish=wish,
        after_denial="Then please let me speak to a person.",
        actions=(GoldAction("transfer_to_human_agents", {"summary": wish}),),
        is_transfer=True,
    )


def _asked(question: _Question, order: Record | None = None) -> Request:
    return Request(
        kind="question",
        wish=question.wish,
        facts={} if order is None else {"order": spelled(order)},
        answers=(question.answer,),
        proposal=question.text,
        actions=(question.call,),
    )
