"""The retail tools that only look: users, orders, products, and a sum."""

from __future__ import annotations

import json

from agentgym.envs.domains.database import Record
from agentgym.envs.domains.sums import calculated
from agentgym.envs.domains.task import GoldAction
from agentgym.envs.domains.toolkit import Toolkit
from agentgym.errors import ToolError
from agentgym.tool import tool


class RetailLookUps(Toolkit):
    """Find users, and see what is in the database."""

    identifies = frozenset({"find_user_id_by_email", "find_user_id_by_name_zip"})

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
