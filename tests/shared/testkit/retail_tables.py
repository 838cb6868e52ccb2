"""Small tables of a shop."""

from __future__ import annotations

from typing import Any

HOME = {"address1": "1 Elm", "address2": "", "city": "Denver", "country": "USA", "state": "CO", "zip": "80211"}


def variant(item_id: str, color: str, price: float, available: bool = True) -> dict[str, Any]:
    return {"item_id": item_id, "options": {"color": color}, "available": available, "price": price}


def order(order_id: str, status: str, paid_by: str, *items: tuple[str, str, float]) -> dict[str, Any]:
    return {
        "order_id": order_id,
        "user_id": "mia",
        "address": HOME,
        "items": [
            {"name": "Lamp", "product_id": "p1", "item_id": item_id, "price": price, "options": {"color": color}}
            for item_id, color, price in items
        ],
        "status": status,
        "fulfillments": [],
        "payment_history": [
            {
                "transaction_type": "payment",
                "amount": round(sum(item[2] for item in items), 2),
                "payment_method_id": paid_by,
            }
        ],
    }


TABLES: dict[str, dict[str, Any]] = {
    "products": {
        "p1": {
            "name": "Lamp",
            "product_id": "p1",
            "variants": {
                "i1": variant("i1", "red", 10.1),
                "i2": variant("i2", "blue", 20.3),
                "i3": variant("i3", "green", 9.05),
                "i4": variant("i4", "black", 5.0, available=False),
            },
        },
        "p2": {"name": "Chair", "product_id": "p2", "variants": {"j1": variant("j1", "red", 80.0)}},
    },
    "users": {
        "mia": {
            "user_id": "mia",
            "name": {"first_name": "Mia", "last_name": "Li"},
            "address": HOME,
            "email": "mia@example.com",
            "payment_methods": {
                "gift": {"source": "gift_card", "id": "gift", "balance": 12.0},
                "paypal": {"source": "paypal", "id": "paypal"},
            },
            "orders": ["#1", "#2", "#3"],
        }
    },
    "orders": {
        "#1": order("#1", "pending", "gift", ("i1", "red", 10.1), ("i1", "red", 10.1), ("i3", "green", 9.05)),
        "#2": order("#2", "delivered", "paypal", ("i1", "red", 10.1), ("i2", "blue", 20.3)),
        "#3": order("#3", "processed", "paypal", ("i2", "blue", 20.3)),
    },
}
