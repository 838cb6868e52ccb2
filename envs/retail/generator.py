"""Draws a task from a seed: a shop, a customer of it, and what they want, as a record of tau2's format."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Final

from agentgym.canonical import packaged
from agentgym.envs.domains.database import Database, Record
from agentgym.envs.domains.task import Case, GoldAction, task_of_record
from agentgym.envs.retail import changes, questions, swaps
from agentgym.envs.retail.request import Request
from agentgym.envs.retail.shop import Shop, drawn_shop
from agentgym.envs.retail.tools import RetailTools
from agentgym.errors import ToolError, UsageError, require_known

_Draw = Callable[[Shop, Record, random.Random], Request | None]

_PLAIN: Final[Mapping[_Draw, Sequence[str]]] = {
    changes.cancel: ("pending",),
    changes.give_back: ("delivered",),
    changes.move_order: ("pending",),
    changes.move_house: ("pending", "processed", "delivered"),
    changes.pay_otherwise: ("pending",),
    swaps.swap: ("pending", "delivered"),
    swaps.swap_for_cheapest: ("pending", "delivered"),
    questions.balance: ("pending", "processed", "delivered"),
    questions.variants_left: ("pending", "processed", "delivered"),
    questions.tracking: ("processed", "delivered"),
}
"""Requests that can be fulfilled as asked, with the states of the orders they apply to."""
_CONDITIONAL: Final[Mapping[_Draw, Sequence[str]]] = {swaps.swap_or_else: ("pending", "delivered")}
_FORBIDDEN: Final[Mapping[_Draw, Sequence[str]]] = {
    changes.give_back_elsewhere: ("delivered",),
    questions.cancel_too_late: ("processed", "delivered"),
    questions.return_too_early: ("pending", "processed"),
    questions.cancel_for_nothing: ("pending",),
    questions.other_product: ("pending", "delivered"),
    questions.others_order: ("pending", "processed", "delivered"),
    questions.person: ("pending", "processed", "delivered"),
}
_FIRST: Final = ("question", "payment refused")
"""Kinds of request that depend on a gift card's balance at the start, so they come first."""
_MOST_REQUESTS: Final = 3
_RULES: Final = packaged(__package__, "shop_rules.toml")["text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """Difficulty of tasks."""

    num_requests: int | None = None
    """Requests of a task, 1 to 3; None draws it."""
    forbidden: float = 0.25
    """Share of requests whose first wish the policy forbids, or that only a person can settle."""
    conditional: float = 0.25
    """Share of requests of the kind "if there is none, then ..."."""
    num_products: int = 14
    """12 to 24."""
    num_users: int = 6
    """1 to 100."""

    def __post_init__(self) -> None:
        if self.num_requests is not None and not 1 <= self.num_requests <= _MOST_REQUESTS:
            raise UsageError(f"num_requests is 1 to {_MOST_REQUESTS}, or None; got {self.num_requests}")
        if min(self.forbidden, self.conditional) < 0 or self.forbidden + self.conditional > 1:
            raise UsageError(
                f"forbidden and conditional are shares whose sum is at most 1; got {self.forbidden}, {self.conditional}"
            )
        if not 12 <= self.num_products <= 24 or not 1 <= self.num_users <= 100:
            raise UsageError(
                f"num_products is 12 to 24 and num_users 1 to 100; got {self.num_products} and {self.num_users}"
            )

    def as_data(self) -> dict[str, object]:
        """Return the difficulty as a task's data holds it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def difficulty_of_data(data: Mapping[str, Any]) -> Difficulty:
    """Return the difficulty that a task's data names.

    Raises:
        UsageError: a value is out of range, or something is no difficulty.
    """
    known = [field.name for field in fields(Difficulty)]
    for name in data:
        require_known("retail task data", name, known)
    return Difficulty(**data)


@lru_cache(maxsize=256)
def case_of_seed(seed: int, difficulty: Difficulty) -> Case:
    """Return the case of a seed, a function of the arguments alone; all members of a group share it.

    Example:
        >>> case = case_of_seed(3, Difficulty(num_requests=1))
        >>> sorted(case.tables)
        ['orders', 'products', 'users']
    """
    rng = random.Random(f"retail {seed}")
    while True:
        shop = drawn_shop(rng, difficulty.num_products, difficulty.num_users)
        requests = _requests(shop, difficulty, rng)
        if requests is not None and _is_sound(shop, requests):
            record = _record(f"seed-{seed}", shop, requests, rng)
            return Case(policy=_RULES, tables=shop.tables, task=task_of_record(record))


def _requests(shop: Shop, difficulty: Difficulty, rng: random.Random) -> list[Request] | None:
    count = difficulty.num_requests or rng.randint(1, _MOST_REQUESTS)
    orders = shop.customers_orders()
    rng.shuffle(orders)
    found: list[Request] = []
    for _ in range(count):
        kinds = rng.choices(
            (_FORBIDDEN, _CONDITIONAL, _PLAIN),
            (difficulty.forbidden, difficulty.conditional, 1 - difficulty.forbidden - difficulty.conditional),
        )[0]
        draw, statuses = rng.choice(list(kinds.items()))
        order = next((one for one in orders if one["status"] in statuses), None)
        request = None if order is None else draw(shop, order, rng)
        if order is None or request is None or request.wish in [one.wish for one in found]:
            return None
        orders.remove(order)
        found.append(request)
    found.sort(key=lambda request: (request.is_transfer, request.kind not in _FIRST))
    return found


def _is_sound(shop: Shop, requests: Sequence[Request]) -> bool:
    """Return True if something cannot be guessed, there is at most one transfer, and every gold call succeeds."""
    if sum(request.is_transfer for request in requests) > 1:
        return False
    if not any(request.kind == "question" or (request.proposal and request.consents) for request in requests):
        return False
    tools = RetailTools(Database(shop.tables))
    try:
        for action in _actions(shop, requests, by_email=True):
            tools.call(action)
    except ToolError:
        return False
    return True


def _actions(shop: Shop, requests: Sequence[Request], by_email: bool) -> list[GoldAction]:
    """Return all gold calls in order."""
    return [identification(shop.customer, by_email), *(action for one in requests for action in one.actions)]


def identification(user: Record, by_email: bool) -> GoldAction:
    """Return the call that finds a user's id."""
    if by_email:
        return GoldAction("find_user_id_by_email", {"email": user["email"]})
    return GoldAction("find_user_id_by_name_zip", {**user["name"], "zip": user["address"]["zip"]})


def _record(task_id: str, shop: Shop, requests: Sequence[Request], rng: random.Random) -> dict[str, Any]:
    """Return a task in tau2's format; its ``script``, next to the instructions, drives our scripted customer."""
    user, by_email = shop.customer, rng.random() < 0.5
    name = f"{user['name']['first_name']} {user['name']['last_name']}"
    email = {"email": user["email"]} if by_email else {}
    return {
        "id": task_id,
        "user_scenario": {
            "instructions": {
                "domain": "retail",
                "reason_for_call": " Then: ".join(request.wish for request in requests),
                "known_info": _known(name, user, by_email, requests),
                "unknown_info": "" if by_email else "You do not remember the email of your account.",
                "task_instructions": _instructions(requests),
            },
            "script": {
                "persona": {**user["name"], "zip": user["address"]["zip"], **email},
                "tells_all": rng.random() < 0.25,
                "requests": [request.as_data() for request in requests],
            },
        },
        "evaluation_criteria": {
            "actions": [
                {"name": action.name, "arguments": dict(action.arguments)}
                for action in _actions(shop, requests, by_email)
            ],
            "communicate_info": list(dict.fromkeys(text for request in requests for text in request.answers)),
            "nl_assertions": None,
            "reward_basis": ["DB", "COMMUNICATE"],
        },
    }


def _known(name: str, user: Record, by_email: bool, requests: Sequence[Request]) -> str:
    who = f"You are {name}, zip code {user['address']['zip']}."
    email = f" Your email is {user['email']}." if by_email else ""
    facts = [fact for request in requests for slot, fact in request.facts.items() if slot != "options"]
    return f"{who}{email} {' '.join(dict.fromkeys(facts))}".strip()


def _instructions(requests: Sequence[Request]) -> str:
    parts = ["Ask for one thing after the other."]
    for request in requests:
        if request.after_denial:
            parts.append(f"If you are refused ({request.wish}), say: {request.after_denial}")
        elif request.denial and not request.proposal:
            parts.append(f"If you are refused ({request.wish}), take it and go on.")
    return " ".join(parts)
