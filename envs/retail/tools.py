"""The sixteen tools of tau2-bench's retail domain, over a database in its schema.

The effects, refusals and database changes of each tool follow ``src/tau2/domains/retail/tools.py`` of
sierra-research/tau2-bench (MIT); ``benchmarks/retail/parity.py`` compares them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentgym.envs.domains.database import Record, copied
from agentgym.envs.domains.sums import calculated
from agentgym.envs.domains.task import GoldAction
from agentgym.envs.domains.toolkit import Toolkit
from agentgym.errors import ToolError
from agentgym.tool import tool

REASONS = ("no longer needed", "ordered by mistake")
"""Why an order may be cancelled."""
MODIFIED = "pending (item modified)"


class RetailTools(Toolkit):
    """Look up and change users, orders and products; a transfer to a person is kept in the database."""

    writes = frozenset(
        {
            "cancel_pending_order",
            "exchange_delivered_order_items",
            "modify_pending_order_address",
            "modify_pending_order_items",
            "modify_pending_order_payment",
            "modify_user_address",
            "return_delivered_order_items",
        }
    )
    identifies = frozenset({"find_user_id_by_email", "find_user_id_by_name_zip"})
    transfer = "transfer_to_human_agents"
    is_as_in_tau2: ClassVar[bool] = False
    """True to behave like tau2 in three respects: price differences of a modified pending order stay unrounded, every
    modified item gets the price and options of the last one, and a transfer is not stored in the database."""

    def owner_of(self, action: GoldAction) -> str | None:
        if "user_id" in action.arguments:
            return str(action.arguments["user_id"])
        order = self.db.find("orders", str(action.arguments.get("order_id")))
        return None if order is None else str(order["user_id"])

    @tool
    def find_user_id_by_email(self, email: str) -> str:
        """Find the id of a user by email.

        Args:
            email: The user's email, such as mia.li1234@example.com.
        """
        for user_id, user in self.db.rows("users"):
            if user["email"].lower() == email.lower():
                return user_id
        raise ToolError(f"no user has the email {email!r}", "not_found")

    @tool
    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        """Find the id of a user by name and zip code, for a user who does not know the email of the account.

        Args:
            first_name: First name, such as Mia.
            last_name: Last name, such as Li.
            zip: Zip code of the user's address, such as 94103.
        """
        wanted = (first_name.lower(), last_name.lower(), zip)
        for user_id, user in self.db.rows("users"):
            name = user["name"]
            if (name["first_name"].lower(), name["last_name"].lower(), user["address"]["zip"]) == wanted:
                return user_id
        raise ToolError(f"no user is called {first_name} {last_name} and has the zip code {zip!r}", "not_found")

    @tool
    def get_user_details(self, user_id: str) -> Record:
        """See a user's name, email, address, payment methods and the ids of all orders.

        Args:
            user_id: Id of the user, such as mia_li_1234.
        """
        return self.need("users", user_id, "user")

    @tool
    def get_order_details(self, order_id: str) -> Record:
        """See an order's status, items, address and payments.

        Args:
            order_id: Id of the order with its sign, such as #W1234567.
        """
        return self.need("orders", order_id, "order")

    @tool
    def get_product_details(self, product_id: str) -> Record:
        """See all variants of a product with options, availability and price.

        Args:
            product_id: Id of the product, which is not the id of an item.
        """
        return self.need("products", product_id, "product")

    @tool
    def get_item_details(self, item_id: str) -> Record:
        """See the options, availability and price of one item.

        Args:
            item_id: Id of the item, which is one variant of a product.
        """
        for _, product in self.db.rows("products"):
            if item_id in product["variants"]:
                return dict(product["variants"][item_id])
        raise ToolError(f"item {item_id!r} not found", "not_found")

    @tool
    def list_all_product_types(self) -> str:
        """List the names of all products with their ids."""
        return json.dumps({product["name"]: key for key, product in self.db.rows("products")}, sort_keys=True)

    @tool
    def calculate(self, expression: str) -> str:
        """Calculate a sum.

        Args:
            expression: Numbers, + - * / and brackets, such as 3 * (54.04 - 41.64).
        """
        return str(calculated(expression))

    @tool
    def transfer_to_human_agents(self, summary: str) -> str:
        """Hand the user over to a person. Only for what none of the tools can do, or when the user asks for it.

        Args:
            summary: What the user needs.
        """
        if not self.is_as_in_tau2:
            self.db.edit("transfers", "transfer")["is_done"] = True
        return "Transfer successful"

    @tool
    def cancel_pending_order(self, order_id: str, reason: str) -> Record:
        """Cancel an order that is pending; what was paid goes back to where it came from. Needs the user's yes.

        Args:
            order_id: Id of the order with its sign, such as #W1234567.
            reason: 'no longer needed' or 'ordered by mistake'.
        """
        order = self._order_that_is(order_id, "pending", "cancelled")
        for payment in order["payment_history"]:
            self._payment_method(order["user_id"], payment["payment_method_id"])
        if reason not in REASONS:
            raise ToolError(f"the reason is one of {', '.join(REASONS)}; got {reason!r}", "invalid_arguments")
        order = self.db.edit("orders", order_id)
        paid = list(order["payment_history"])
        for payment in paid:
            self._pay(order["user_id"], payment["payment_method_id"], -payment["amount"])
        order["payment_history"] += [{**payment, "transaction_type": "refund"} for payment in paid]
        order.update(status="cancelled", cancel_reason=reason)
        return order

    @tool
    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Record:
        """Change the address that a pending order goes to. Needs the user's yes.

        Args:
            order_id: Id of the order with its sign, such as #W1234567.
            address1: Street and number.
            address2: Flat or suite; may be empty.
            city: City, such as San Francisco.
            state: State, such as CA.
            country: Country, such as USA.
            zip: Zip code.
        """
        self._order_that_is_pending(order_id)
        order = self.db.edit("orders", order_id)
        order["address"] = _address(address1, address2, city, state, country, zip)
        return order

    @tool
    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Record:
        """Change items of a pending order to other variants of the same products, once per order. Needs the user's yes.

        Args:
            order_id: Id of the order with its sign, such as #W1234567.
            item_ids: Ids of all the items to change; an item that is there twice may be named twice.
            new_item_ids: Ids of what they become, in the same order.
            payment_method_id: Where the difference of price is paid from or refunded to.
        """
        order = self._order_that_is(order_id, "pending", "modified")
        if any(old == new for old, new in zip(item_ids, new_item_ids, strict=False)):
            raise ToolError("a new item must differ from the old one", "invalid_arguments")
        variants, difference = self._replacements(order, item_ids, new_item_ids)
        difference = difference if self.is_as_in_tau2 else _rounded(difference)
        self._check_payment(order["user_id"], payment_method_id, difference)
        order = self.db.edit("orders", order_id)
        kind = "payment" if difference > 0 else "refund"
        payment = {"transaction_type": kind, "amount": abs(difference), "payment_method_id": payment_method_id}
        order["payment_history"].append(payment)
        self._pay(order["user_id"], payment_method_id, difference)
        for old, variant in zip(item_ids, variants, strict=True):
            item = next(item for item in order["items"] if item["item_id"] == old)
            shown = variants[-1] if self.is_as_in_tau2 else variant
            item.update(item_id=variant["item_id"], price=shown["price"], options=dict(shown["options"]))
        order["status"] = MODIFIED
        return order

    @tool
    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> Record:
        """Pay a pending order by another payment method; what was paid is refunded. Needs the user's yes.

        Args:
            order_id: Id of the order with its sign, such as #W1234567.
            payment_method_id: What to pay by instead.
        """
        order = self._order_that_is_pending(order_id)
        self._payment_method(order["user_id"], payment_method_id)
        history = order["payment_history"]
        if len(history) != 1 or history[0]["transaction_type"] != "payment":
            raise ToolError("the order must have exactly one payment")
        amount, old = history[0]["amount"], history[0]["payment_method_id"]
        if old == payment_method_id:
            raise ToolError("the new payment method must differ from the old one", "invalid_arguments")
        self._payment_method(order["user_id"], old)
        self._check_payment(order["user_id"], payment_method_id, amount)
        order = self.db.edit("orders", order_id)
        for kind, method in (("payment", payment_method_id), ("refund", old)):
            order["payment_history"].append({"transaction_type": kind, "amount": amount, "payment_method_id": method})
        self._pay(order["user_id"], payment_method_id, amount)
        self._pay(order["user_id"], old, -amount)
        return order

    @tool
    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Record:
        """Change a user's default address. Needs the user's yes.

        Args:
            user_id: Id of the user, such as mia_li_1234.
            address1: Street and number.
            address2: Flat or suite; may be empty.
            city: City, such as San Francisco.
            state: State, such as CA.
            country: Country, such as USA.
            zip: Zip code.
        """
        self.need("users", user_id, "user")
        user = self.db.edit("users", user_id)
        user["address"] = _address(address1, address2, city, state, country, zip)
        return user

    @tool
    def return_delivered_order_items(self, order_id: str, item_ids: list[str], payment_method_id: str) -> Record:
        """Take back items of a delivered order, once per order. Needs the user's yes.

        Args:
            order_id: Id of the order with its sign, such as #W1234567.
            item_ids: Ids of all the items to return; an item that is there twice may be named twice.
            payment_method_id: Where the refund goes: what the order was paid by, or a gift card of the user.
        """
        order = self._order_that_is(order_id, "delivered", "returned")
        method = self._payment_method(order["user_id"], payment_method_id)
        if method["source"] != "gift_card" and payment_method_id != order["payment_history"][0]["payment_method_id"]:
            raise ToolError("a refund goes to what the order was paid by, or to a gift card", "invalid_arguments")
        _check_items(order, item_ids)
        order = self.db.edit("orders", order_id)
        order.update(
            status="return requested", return_items=sorted(item_ids), return_payment_method_id=payment_method_id
        )
        return order

    @tool
    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Record:
        """Exchange items of a delivered order for variants of the same products, once per order. Needs the user's yes.

        Args:
            order_id: Id of the order with its sign, such as #W1234567.
            item_ids: Ids of all the items to exchange; an item that is there twice may be named twice.
            new_item_ids: Ids of what they are exchanged for, in the same order.
            payment_method_id: Where the difference of price is paid from or refunded to.
        """
        order = self._order_that_is(order_id, "delivered", "exchanged")
        _, difference = self._replacements(order, item_ids, new_item_ids)
        difference = _rounded(difference)
        self._check_payment(order["user_id"], payment_method_id, difference)
        order = self.db.edit("orders", order_id)
        order.update(
            status="exchange requested",
            exchange_items=sorted(item_ids),
            exchange_new_items=sorted(new_item_ids),
            exchange_payment_method_id=payment_method_id,
            exchange_price_difference=difference,
        )
        return order

    # --------------------------------------------------------------------------------------------------- private

    def _order_that_is(self, order_id: str, status: str, done: str) -> Record:
        order = self.need("orders", order_id, "order")
        if order["status"] != status:
            raise ToolError(f"order {order_id} is {order['status']}; only one that is {status} can be {done}")
        return order

    def _order_that_is_pending(self, order_id: str) -> Record:
        """Return an order whose address and payment can be modified: its items may have been."""
        order = self.need("orders", order_id, "order")
        if "pending" not in order["status"]:
            raise ToolError(f"order {order_id} is {order['status']}; only one that is pending can be modified")
        return order

    def _payment_method(self, user_id: str, payment_method_id: str) -> Mapping[str, Any]:
        methods = self.need("users", user_id, "user")["payment_methods"]
        if payment_method_id not in methods:
            raise ToolError(f"payment method {payment_method_id!r} not found", "not_found")
        method: Mapping[str, Any] = methods[payment_method_id]
        return method

    def _check_payment(self, user_id: str, payment_method_id: str, amount: float) -> None:
        method = self._payment_method(user_id, payment_method_id)
        if method["source"] == "gift_card" and method["balance"] < amount:
            raise ToolError(f"the balance of the gift card, {method['balance']:.2f}, does not cover {amount:.2f}")

    def _pay(self, user_id: str, payment_method_id: str, amount: float) -> None:
        """Deduct an amount from a gift card, or add it if it is negative; other methods have no balance here."""
        if self._payment_method(user_id, payment_method_id)["source"] == "gift_card":
            method = self.db.edit("users", user_id)["payment_methods"][payment_method_id]
            method["balance"] = _rounded(method["balance"] - amount)

    def _replacements(
        self, order: Record, item_ids: Sequence[str], new_item_ids: Sequence[str]
    ) -> tuple[list[Record], float]:
        """Return the variants that replace the items, and the difference in price."""
        _check_items(order, item_ids)
        if len(item_ids) != len(new_item_ids):
            raise ToolError("there must be as many new items as old ones", "invalid_arguments")
        variants, difference = [], 0.0
        for old, new in zip(item_ids, new_item_ids, strict=True):
            item = next(item for item in order["items"] if item["item_id"] == old)
            variant = self.need("products", item["product_id"], "product")["variants"].get(new)
            if variant is None:
                raise ToolError(f"item {new!r} is no variant of {item['name']}", "not_found")
            if not variant["available"]:
                raise ToolError(f"item {new!r} is not available")
            variants.append(copied(variant))
            difference += variant["price"] - item["price"]
        return variants, difference


def _rounded(amount: float) -> float:
    """Round to cents, and return 0.0 instead of -0.0."""
    return round(amount, 2) + 0.0


def _check_items(order: Record, item_ids: Sequence[str]) -> None:
    there = [item["item_id"] for item in order["items"]]
    for item_id in item_ids:
        if item_ids.count(item_id) > there.count(item_id):
            raise ToolError(f"item {item_id!r} is not so often in order {order['order_id']}", "not_found")


def _address(address1: str, address2: str, city: str, state: str, country: str, zip: str) -> Record:
    return {
        "address1": address1,
        "address2": address2,
        "city": city,
        "country": country,
        "state": state,
        "zip": zip,
    }
