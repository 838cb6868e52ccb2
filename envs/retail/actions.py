"""What a random policy does in the shop: phrases, and calls that are possible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agentgym.envs.domains.database import Database
from agentgym.envs.domains.task import GoldAction

PHRASES: Final = (
    "Could you tell me your email, or your name and zip code?",
    "What is the order number, and what is the reason?",
    "Which items is it about, which options would you like, and which payment method should be used?",
    "What is the new address?",
    "I am sorry, that is not possible.",
    "Is there anything else I can help with?",
)


def random_calls(database: Database, user_id: str) -> Iterator[GoldAction]:
    """Calls about a customer: looking at everything, and cancelling what can be cancelled."""
    user = dict(database.rows("users"))[user_id]
    yield GoldAction("get_user_details", {"user_id": user_id})
    for order_id in user["orders"]:
        yield GoldAction("get_order_details", {"order_id": order_id})
        yield GoldAction("cancel_pending_order", {"order_id": order_id, "reason": "no longer needed"})
    yield GoldAction("list_all_product_types", {})
