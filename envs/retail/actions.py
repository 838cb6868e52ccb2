"""What a random policy does in the shop: phrases, the gold calls, and others that are possible."""

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


def other_calls(database: Database) -> Iterator[GoldAction]:
    """Calls about the customer, who is the first user: looking at everything, and cancelling what can be cancelled."""
    user_id, user = next(database.rows("users"))
    yield GoldAction("get_user_details", {"user_id": user_id})
    for order_id in user["orders"]:
        yield GoldAction("get_order_details", {"order_id": order_id})
        yield GoldAction("cancel_pending_order", {"order_id": order_id, "reason": "no longer needed"})
    yield GoldAction("list_all_product_types", {})
