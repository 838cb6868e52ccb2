"""The retail tools by hand: what each refuses and what it leaves in the database."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.retail_tables import HOME, TABLES

from agentgym.envs.domains.database import Database
from agentgym.envs.domains.sums import calculated
from agentgym.envs.domains.task import GoldAction
from agentgym.envs.retail.tools import MODIFIED, RetailTools
from agentgym.errors import EnvError, ToolDefinitionError, ToolError


def tools() -> RetailTools:
    return RetailTools(Database(TABLES))


def call(toolkit: RetailTools, name: str, **arguments: Any) -> Any:
    before = copy.deepcopy(TABLES)
    try:
        return toolkit.call(GoldAction(name, arguments))
    finally:
        assert before == TABLES  # what episodes share is never written to


def balance(toolkit: RetailTools) -> float:
    user = toolkit.db.find("users", "mia")
    assert user is not None
    return float(user["payment_methods"]["gift"]["balance"])


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("find_user_id_by_email", {"email": "no@example.com"}, "no user has"),
        ("find_user_id_by_name_zip", {"first_name": "Mia", "last_name": "Li", "zip": "1"}, "no user is called"),
        ("get_order_details", {"order_id": "1"}, "order '1' not found"),
        ("get_item_details", {"item_id": "p1"}, "not found"),
        ("cancel_pending_order", {"order_id": "#3", "reason": "no longer needed"}, "is processed"),
        ("cancel_pending_order", {"order_id": "#1", "reason": "bored"}, "the reason is one of"),
        ("modify_pending_order_address", {"order_id": "#2", **HOME}, "is delivered"),
        ("modify_pending_order_payment", {"order_id": "#1", "payment_method_id": "gift"}, "must differ"),
        ("modify_pending_order_payment", {"order_id": "#1", "payment_method_id": "visa"}, "not found"),
        (
            "return_delivered_order_items",
            {"order_id": "#1", "item_ids": ["i1"], "payment_method_id": "gift"},
            "pending",
        ),
        (
            "return_delivered_order_items",
            {"order_id": "#2", "item_ids": ["i3"], "payment_method_id": "gift"},
            "so often",
        ),
        ("no_such_tool", {}, "unknown tool"),
        ("cancel_pending_order", {"order_id": "#1"}, "reason"),
    ],
)
def test_a_refused_call_says_why_and_changes_nothing(name: str, arguments: dict[str, Any], says: str) -> None:
    toolkit = tools()
    with pytest.raises(ToolError, match=says):
        call(toolkit, name, **arguments)
    assert toolkit.db.changes() == {} and toolkit.db.hash() == tools().db.hash()


@pytest.mark.parametrize(
    ("old", "new", "method", "says"),
    [
        (["i1"], ["i4"], "paypal", "not available"),
        (["i1"], ["j1"], "paypal", "no variant"),
        (["i1"], ["i2", "i3"], "paypal", "as many"),
        (["i1"], ["i1"], "paypal", "must differ"),
        (["i1", "i1", "i1"], ["i2", "i2", "i2"], "paypal", "so often"),
        (["i1", "i1"], ["i2", "i2"], "gift", "does not cover 20.40"),
    ],
)
def test_an_impossible_swap_is_refused(old: list[str], new: list[str], method: str, says: str) -> None:
    toolkit = tools()
    with pytest.raises(ToolError, match=says):
        call(
            toolkit,
            "modify_pending_order_items",
            order_id="#1",
            item_ids=old,
            new_item_ids=new,
            payment_method_id=method,
        )
    assert toolkit.db.changes() == {}


def test_cancelling_refunds_the_gift_card_at_once() -> None:
    toolkit = tools()
    done = call(toolkit, "cancel_pending_order", order_id="#1", reason="ordered by mistake")
    assert (done["status"], done["cancel_reason"], balance(toolkit)) == ("cancelled", "ordered by mistake", 41.25)
    assert [payment["transaction_type"] for payment in done["payment_history"]] == ["payment", "refund"]
    with pytest.raises(ToolError, match="is cancelled"):
        call(toolkit, "cancel_pending_order", order_id="#1", reason="ordered by mistake")


def test_swapping_two_alike_gives_each_its_own_variant() -> None:
    toolkit = tools()
    swap = {"item_ids": ["i1", "i1"], "new_item_ids": ["i2", "i3"], "payment_method_id": "gift"}
    done = call(toolkit, "modify_pending_order_items", order_id="#1", **swap)
    assert [(item["item_id"], item["price"]) for item in done["items"]] == [("i2", 20.3), ("i3", 9.05), ("i3", 9.05)]
    assert [item["options"]["color"] for item in done["items"]] == ["blue", "green", "green"]
    assert (done["status"], balance(toolkit), done["payment_history"][-1]["amount"]) == (MODIFIED, 2.85, 9.15)
    moved = call(toolkit, "modify_pending_order_address", order_id="#1", **{**HOME, "zip": "1"})
    assert moved["address"]["zip"] == "1"  # an order whose items were modified is still pending
    with pytest.raises(ToolError, match="item modified"):
        call(toolkit, "modify_pending_order_items", order_id="#1", **swap)


def test_paying_otherwise_refunds_what_was_paid() -> None:
    toolkit = tools()
    done = call(toolkit, "modify_pending_order_payment", order_id="#1", payment_method_id="paypal")
    kinds = [(payment["transaction_type"], payment["payment_method_id"]) for payment in done["payment_history"]]
    assert kinds == [("payment", "gift"), ("payment", "paypal"), ("refund", "gift")] and balance(toolkit) == 41.25
    with pytest.raises(ToolError, match="exactly one payment"):
        call(toolkit, "modify_pending_order_payment", order_id="#1", payment_method_id="gift")


def test_a_return_goes_to_the_gift_card_or_back_and_an_exchange_notes_the_difference() -> None:
    toolkit, other = tools(), tools()
    back = call(toolkit, "return_delivered_order_items", order_id="#2", item_ids=["i2", "i1"], payment_method_id="gift")
    assert (back["status"], back["return_items"]) == ("return requested", ["i1", "i2"])
    swap = {"order_id": "#2", "item_ids": ["i2", "i1"], "new_item_ids": ["i1", "i3"], "payment_method_id": "paypal"}
    done = call(other, "exchange_delivered_order_items", **swap)
    assert (done["exchange_new_items"], done["exchange_price_difference"]) == (["i1", "i3"], -11.25)


def test_a_change_that_is_taken_back_is_none() -> None:
    toolkit = tools()
    call(toolkit, "modify_user_address", user_id="mia", **{**HOME, "zip": "1"})
    assert toolkit.db.hash() != tools().db.hash()
    call(toolkit, "modify_user_address", user_id="mia", **HOME)
    assert toolkit.db.hash() == tools().db.hash()


def test_a_toolkit_names_tools_that_it_has() -> None:
    with pytest.raises(ToolDefinitionError, match="no tool 'sell'"):
        type("Wrong", (RetailTools,), {"writes": frozenset({"sell"})})


@given(st.recursive(st.integers(0, 99).map(str), lambda one: st.tuples(one, st.sampled_from("+-*"), one).map(" ".join)))
def test_sums_are_pythons(expression: str) -> None:
    if len(expression) <= 200:
        assert calculated(expression.replace(" 0", " 0")) == round(float(eval(_without_zeros(expression))), 2)


def _without_zeros(expression: str) -> str:
    return " ".join(str(int(part)) if part.isdigit() else part for part in expression.split())


@pytest.mark.parametrize(
    "text", ["", "1 +", "2 ** 9", "9 // 2", "__import__('os')", "1 / 0", "(" * 150, "1" * 201, "True"]
)
def test_what_is_no_sum_is_refused(text: str) -> None:
    with pytest.raises(ToolError, match="cannot calculate"):
        calculated(text)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 2)), max_size=12), st.integers(0, 12))
def test_a_database_goes_back_to_any_point(writes: list[tuple[str, int]], at: int) -> None:
    start = {"t": {"a": {"n": 0}, "b": {"n": 1}}}
    database, plain = Database(start), {"a": 0, "b": 1}
    kept = database.dump(), dict(plain)
    for place, (key, value) in enumerate(writes):
        if place == at:
            kept = database.dump(), dict(plain)
        database.edit("t", key)["n"] = value
        plain[key] = value
        assert {key: record["n"] for key, record in database.rows("t")} == plain
    database.load(kept[0])
    assert {key: record["n"] for key, record in database.rows("t")} == kept[1]
    assert start == {"t": {"a": {"n": 0}, "b": {"n": 1}}}
    changed = {key: {"n": value} for key, value in kept[1].items() if start["t"].get(key) != {"n": value}}
    assert database.changes() == ({"t": changed} if changed else {})


def test_a_gold_action_without_a_tool_is_named_and_a_rejected_one_changes_nothing() -> None:
    toolkit = tools()
    toolkit.replay([GoldAction("get_order_details", {"order_id": "1"})])
    with pytest.raises(
        EnvError, match=r"gold action 'cancel' is no tool of RetailTools; it has .*cancel_pending_order"
    ):
        toolkit.replay([GoldAction("cancel", {})])
