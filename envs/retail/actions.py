"""Actions that make sense in a shop, for random policies and for completion."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.call_syntax import format_call
from agentgym.envs.domains.env import DomainEnv
from agentgym.envs.domains.task import GoldAction
from agentgym.types import ToolCall

_PHRASES = (
    "Could you tell me your email, or your name and zip code?",
    "What is the order number, and what is the reason?",
    "Which items is it about, which options would you like, and which payment method should be used?",
    "What is the new address?",
    "I am sorry, that is not possible.",
    "Is there anything else I can help with?",
)


def possible_actions(env: DomainEnv) -> tuple[str, ...]:
    """Phrases, and calls about the task's customer and orders that the tools do not refuse."""
    calls = [format_call(ToolCall(action.name, action.arguments), env.tools) for action in _calls(env)]
    return (*_PHRASES, *dict.fromkeys(calls))


def _calls(env: DomainEnv) -> Iterator[GoldAction]:
    """The gold calls that can be made now, in any order; what stands in the way of a random policy are the others."""
    case, database = env.case, env.toolkit.db
    for action in case.task.actions:
        order = database.find("orders", str(action.arguments.get("order_id")))
        if action.name not in env.toolkit.writes or order is None or _is_allowed(action, order["status"]):
            yield action
    user_id = next(iter(case.tables["users"]))
    yield GoldAction("get_user_details", {"user_id": user_id})
    for order_id in case.tables["users"][user_id]["orders"]:
        yield GoldAction("get_order_details", {"order_id": order_id})
        order = database.find("orders", order_id)
        if order is not None and order["status"] == "pending":
            yield GoldAction("cancel_pending_order", {"order_id": order_id, "reason": "no longer needed"})
    yield GoldAction("list_all_product_types", {})


def _is_allowed(action: GoldAction, status: str) -> bool:
    wanted = "delivered" if "delivered" in action.name else "pending"
    return status == wanted
