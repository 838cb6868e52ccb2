"""Draws requests for another variant of an item: a change of one option, at a price, or else something else."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from agentgym.envs.domains.database import Record
from agentgym.envs.domains.task import GoldAction
from agentgym.envs.retail.changes import cancel, give_back, look_up
from agentgym.envs.retail.request import (
    Consent,
    Request,
    ids_about,
    item_texts,
    method_texts,
    options_text,
    order_texts,
    spelled,
)
from agentgym.envs.retail.shop import Shop

_MARGIN = 25.0
"""A limit on the price differs from the actual price by at most this many dollars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Swap:
    """A change of one item of an order; ``method`` pays or receives the difference in price."""

    order: Record
    item: Record
    product: Record
    method: Record

    @property
    def verb(self) -> str:
        return "exchange" if self.order["status"] == "delivered" else "change"

    @property
    def tool(self) -> str:
        is_delivered = self.order["status"] == "delivered"
        return "exchange_delivered_order_items" if is_delivered else "modify_pending_order_items"

    def others(self) -> list[Record]:
        """Return the variants that differ from the item."""
        return [one for key, one in self.product["variants"].items() if key != self.item["item_id"]]

    def call(self, variant: Record) -> GoldAction:
        return GoldAction(
            self.tool,
            {
                "order_id": self.order["order_id"],
                "item_ids": [self.item["item_id"]],
                "new_item_ids": [variant["item_id"]],
                "payment_method_id": self.method["id"],
            },
        )

    def is_payable(self, variant: Record) -> bool:
        more = float(variant["price"] - self.item["price"])
        return self.method["source"] != "gift_card" or float(self.method["balance"]) >= more

    def neighbours(self) -> list[tuple[Record, str, str]]:
        """Return the payable variants that differ in one option alone, with its name and value."""
        found = []
        for variant in self.others():
            changed = [
                (name, value) for name, value in variant["options"].items() if self.item["options"][name] != value
            ]
            if len(changed) == 1 and self.is_payable(variant):
                found.append((variant, *changed[0]))
        return found

    def consent(self, *texts: str) -> Consent:
        return (order_texts(self.order), item_texts(self.item), texts, method_texts(self.method))

    def proposal(self, variant: Record, why: str = "") -> str:
        return (
            f"{why}I will {self.verb} the {self.item['name']} ({self.item['item_id']}) of order "
            f"{self.order['order_id']} for {variant['item_id']} ({options_text(variant['options'])}) at "
            f"{variant['price']:.2f}; the difference goes over your {method_texts(self.method)[0]} "
            f"({self.method['id']})."
        )

    def request(self, wish: str, **fields: Any) -> Request:
        order, method = self.order, self.method
        return Request(
            wish=f"I would like to {self.verb} the {self.item['name'].lower()} of my order. {wish}",
            ids=(*ids_about(order), method["id"]),
            **{
                "facts": {
                    "order": spelled(order),
                    "item": f"Only the {self.item['name'].lower()}.",
                    "options": wish,
                    "payment": f"Over my {method_texts(method)[0]}, please.",
                },
                **fields,
            },
        )


def swap(shop: Shop, order: Record, rng: random.Random) -> Request | None:
    """Ask for another value of one option, all others unchanged."""
    case = _drawn(shop, order, rng)
    good = [one for one in case.neighbours() if one[0]["available"]]
    if not good:
        return None
    variant, option, value = rng.choice(good)
    return case.request(
        f"I want it with {option} {value}, otherwise the same.",
        kind=case.verb,
        consents=[case.consent(value, variant["item_id"])],
        proposal=case.proposal(variant),
        actions=(*look_up(order, case.item["product_id"]), case.call(variant)),
    )


def swap_for_cheapest(shop: Shop, order: Record, rng: random.Random) -> Request | None:
    """Ask for the cheapest other variant that is available."""
    case = _drawn(shop, order, rng)
    there = sorted((one for one in case.others() if one["available"]), key=lambda one: float(one["price"]))
    if not there or (len(there) > 1 and there[0]["price"] == there[1]["price"]) or not case.is_payable(there[0]):
        return None
    return case.request(
        "I want the cheapest other one that is available, whatever its options.",
        kind=f"{case.verb} for the cheapest",
        consents=[case.consent("cheapest", there[0]["item_id"])],
        proposal=case.proposal(there[0], why="The cheapest one that is available: "),
        actions=(*look_up(order, case.item["product_id"]), case.call(there[0])),
    )


def swap_or_else(shop: Shop, order: Record, rng: random.Random) -> Request | None:
    """Ask for another value of one option, perhaps up to a price; else for a second wish or nothing."""
    case = _drawn(shop, order, rng)
    found = case.neighbours()
    if not found:
        return None
    variant, option, value = rng.choice(found)
    limit = int(variant["price"] + rng.uniform(-_MARGIN, _MARGIN)) + 1 if rng.random() < 0.5 else None
    is_good = variant["available"] and (limit is None or variant["price"] <= limit)
    at_most = "" if limit is None else f" and costs at most {limit} dollars"
    wish = f"I want it with {option} {value}, otherwise the same, if that is available{at_most}."
    second = _second_wish(shop, case, rng)
    first = case.request(
        f"{wish} {_or_else(second)}",
        kind=f"{case.verb} or {'nothing' if second is None else second.kind}",
        consents=[case.consent(value, variant["item_id"]), *(second.consents if second else ())],
        proposal=case.proposal(variant),
        actions=(*look_up(order, case.item["product_id"]), case.call(variant)),
        takes_refusal=True,
        after_denial="" if second is None else f"In that case: {second.wish}",
    )
    if second is not None:
        facts = {**second.facts, **first.facts}
        if "payment" in second.facts:
            facts["payment"] = f"{first.facts['payment']} A refund goes the same way."
        first = replace(first, facts=facts, ids=(*first.ids, *second.ids))
    if is_good:
        return first
    reason = "not available" if not variant["available"] else f"{variant['price']:.2f}, which is over {limit}"
    sorry = f"I am sorry, the one with {option} {value} is {reason}"
    looked_up = look_up(order, case.item["product_id"])
    if second is None:
        denial = f"{sorry}, so I cannot {case.verb} it."
        return replace(first, denial=denial, proposal="", actions=looked_up)
    return replace(first, proposal=f"{sorry}. So {second.proposal}", actions=(*looked_up, second.actions[-1]))


def _second_wish(shop: Shop, case: _Swap, rng: random.Random) -> Request | None:
    if rng.random() < 0.35:
        return None
    if case.order["status"] == "pending":
        return cancel(shop, case.order, rng)
    for _ in range(8):  # the same item must come back, and the refund go where the difference would have gone
        second = give_back(shop, case.order, rng)
        arguments = second.actions[-1].arguments
        if arguments["item_ids"] == [case.item["item_id"]] and arguments["payment_method_id"] == case.method["id"]:
            return second
    return None


def _or_else(second: Request | None) -> str:
    if second is None:
        return "If it is not, leave everything as it is."
    return (
        "If it is not, cancel the order instead." if second.kind == "cancel" else "If it is not, I return it instead."
    )


def _drawn(shop: Shop, order: Record, rng: random.Random) -> _Swap:
    item = rng.choice(order["items"])
    method = shop.customer["payment_methods"][rng.choice(sorted(shop.customer["payment_methods"]))]
    return _Swap(order=order, item=item, product=shop.tables["products"][item["product_id"]], method=method)
