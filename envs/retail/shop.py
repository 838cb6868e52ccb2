"""Draws a shop from a seed: products with variants, users, and their orders, in tau2's schema."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product as all_combinations
from typing import Final

from agentgym.envs.domains.database import Record

_CUSTOMERS_ORDERS: Final = ("pending", "pending", "delivered", "delivered", "processed")
"""States of the customer's orders: enough for any three requests."""
_OTHER_STATUS: Final = ("pending", "delivered", "processed", "cancelled")
_NUM_VARIANTS = (5, 8)
_AVAILABLE = 0.65


@dataclass(frozen=True, slots=True)
class Shop:
    """A database, and the user in it who is the customer."""

    tables: Mapping[str, dict[str, Record]]
    customer_id: str

    @property
    def customer(self) -> Record:
        """The customer's record in ``users``."""
        return self.tables["users"][self.customer_id]

    def customers_orders(self) -> list[Record]:
        """Return the customer's orders."""
        return [self.tables["orders"][order_id] for order_id in self.customer["orders"]]


def drawn_shop(rng: random.Random, num_products: int, num_users: int) -> Shop:
    """Return a shop. No product is in two of the customer's orders, so an order can be found by its contents."""
    names = rng.sample(sorted(PRODUCTS), num_products)
    products = {made["product_id"]: made for made in (_product(name, rng) for name in names)}
    tables: dict[str, dict[str, Record]] = {"products": products, "users": {}, "orders": {}}
    people = rng.sample([(first, last) for first in FIRST_NAMES for last in LAST_NAMES], num_users)
    for place, (first, last) in enumerate(people):
        user = _user(first, last, rng, is_customer=place == 0)
        tables["users"][user["user_id"]] = user
        left = rng.sample(list(products), num_products)
        statuses: Sequence[str] = _CUSTOMERS_ORDERS if place == 0 else rng.sample(_OTHER_STATUS, rng.randint(1, 2))
        for status in rng.sample(statuses, len(statuses)):
            chosen = [products[left.pop()] for _ in range(rng.randint(1, 2))]
            order_id = f"#W{digits(rng, 7)}"
            while order_id in tables["orders"]:
                order_id = f"#W{digits(rng, 7)}"
            tables["orders"][order_id] = _order(order_id, user, status, chosen, rng)
            user["orders"].append(order_id)
    return Shop(tables, next(iter(tables["users"])))


def digits(rng: random.Random, count: int) -> str:
    """Return ``count`` random digits, the first not 0."""
    return str(rng.randrange(10 ** (count - 1), 10**count))


def drawn_address(rng: random.Random) -> Record:
    """Return an address."""
    city, state, zip_start = rng.choice(CITIES)
    return {
        "address1": f"{rng.randint(1, 999)} {rng.choice(STREETS)}",
        "address2": f"Suite {rng.randint(100, 999)}" if rng.random() < 0.5 else "",
        "city": city,
        "country": "USA",
        "state": state,
        "zip": f"{zip_start}{rng.randint(10, 99)}",
    }


def _product(name: str, rng: random.Random) -> Record:
    price, options = PRODUCTS[name]
    combinations = list(all_combinations(*options.values()))
    variants: dict[str, object] = {}
    for values in rng.sample(combinations, min(len(combinations), rng.randint(*_NUM_VARIANTS))):
        item_id = digits(rng, 10)
        variants[item_id] = {
            "item_id": item_id,
            "options": dict(zip(options, values, strict=True)),
            "available": rng.random() < _AVAILABLE,
            "price": _amount(price * rng.uniform(0.8, 1.25), rng),
        }
    return {"name": name, "product_id": digits(rng, 10), "variants": variants}


def _amount(about: float, rng: random.Random) -> float:
    """Return an amount of money whose cents do not end in 0, so that there is only one way to write it."""
    return round(int(about) + rng.randint(0, 9) / 10 + rng.randint(1, 9) / 100, 2)


def _user(first: str, last: str, rng: random.Random, is_customer: bool) -> Record:
    sources = ["credit_card", "gift_card", "paypal"]
    chosen = rng.sample(sources, rng.randint(2 if is_customer else 1, 3))
    if is_customer and "gift_card" not in chosen:
        chosen[-1] = "gift_card"
    methods = [_payment_method(source, rng) for source in chosen]
    name = f"{first}_{last}".lower()
    return {
        "user_id": f"{name}_{digits(rng, 4)}",
        "name": {"first_name": first, "last_name": last},
        "address": drawn_address(rng),
        "email": f"{name.replace('_', '.')}{digits(rng, 4)}@example.com",
        "payment_methods": {method["id"]: method for method in methods},
        "orders": [],
    }


def _payment_method(source: str, rng: random.Random) -> Record:
    method: Record = {"source": source, "id": f"{source}_{digits(rng, 7)}"}
    if source == "credit_card":
        method.update(brand=rng.choice(CARD_BRANDS), last_four=digits(rng, 4))
    if source == "gift_card":
        method["balance"] = _amount(rng.choice((30, 80, 150, 600, 1500)) * rng.uniform(0.7, 1.3), rng)
    return method


def _order(order_id: str, user: Record, status: str, products: Sequence[Record], rng: random.Random) -> Record:
    variants = [rng.choice(list(product["variants"].values())) for product in products]
    items = [
        {
            "name": product["name"],
            "product_id": product["product_id"],
            "item_id": variant["item_id"],
            "price": variant["price"],
            "options": dict(variant["options"]),
        }
        for product, variant in zip(products, variants, strict=True)
    ]
    item_ids = [item["item_id"] for item in items]
    is_sent = status in ("processed", "delivered")
    order: Record = {
        "order_id": order_id,
        "user_id": user["user_id"],
        "address": dict(user["address"]),
        "items": items,
        "status": status,
        "fulfillments": [{"tracking_id": [digits(rng, 12)], "item_ids": item_ids}] if is_sent else [],
        "payment_history": [
            {
                "transaction_type": "payment",
                "amount": round(sum(item["price"] for item in items), 2),
                "payment_method_id": rng.choice(list(user["payment_methods"])),
            }
        ],
    }
    if status == "cancelled":
        order["cancel_reason"] = "no longer needed"
        order["payment_history"].append({**order["payment_history"][0], "transaction_type": "refund"})
    return order


# --------------------------------------------------------------------------------------- contents of the generated shop

_SIZES = ("S", "M", "L", "XL")
_COLOURS = ("black", "white", "red", "blue", "green", "grey")

PRODUCTS: Final[Mapping[str, tuple[float, Mapping[str, Sequence[str]]]]] = {
    "T-Shirt": (24.0, {"color": _COLOURS, "size": _SIZES, "material": ("cotton", "linen")}),
    "Rain Jacket": (95.0, {"color": _COLOURS, "size": _SIZES}),
    "Running Shoes": (120.0, {"size": ("7", "8", "9", "10", "11"), "color": _COLOURS}),
    "Hiking Boots": (160.0, {"size": ("7", "8", "9", "10", "11"), "material": ("leather", "suede")}),
    "Backpack": (80.0, {"color": _COLOURS, "capacity": ("20 liters", "30 liters", "45 liters")}),
    "Suitcase": (210.0, {"color": _COLOURS, "size": ("small", "medium", "large")}),
    "Water Bottle": (28.0, {"capacity": ("500 ml", "750 ml", "1000 ml"), "material": ("steel", "glass", "plastic")}),
    "Desk Lamp": (55.0, {"color": _COLOURS, "power source": ("USB", "battery", "AC adapter")}),
    "Office Chair": (320.0, {"material": ("mesh", "leather", "fabric"), "color": _COLOURS}),
    "Bookshelf": (140.0, {"material": ("oak", "pine", "steel"), "height": ("4 ft", "5 ft", "6 ft")}),
    "Mechanical Keyboard": (110.0, {"switch": ("clicky", "linear", "tactile"), "layout": ("full", "compact")}),
    "Wireless Mouse": (45.0, {"color": _COLOURS, "grip": ("left-handed", "right-handed", "upright")}),
    "Headphones": (180.0, {"color": _COLOURS, "type": ("in-ear", "on-ear", "over-ear")}),
    "Smart Watch": (260.0, {"band": ("silicone", "leather", "metal"), "display": ("LCD", "AMOLED")}),
    "Tablet": (420.0, {"storage": ("32GB", "64GB", "128GB"), "color": _COLOURS}),
    "Bluetooth Speaker": (85.0, {"color": _COLOURS, "battery life": ("10 hours", "20 hours")}),
    "Coffee Maker": (130.0, {"capacity": ("2 cups", "4 cups", "8 cups"), "type": ("drip", "espresso")}),
    "Tea Kettle": (40.0, {"material": ("steel", "glass", "ceramic"), "capacity": ("1 liter", "2 liters")}),
    "Electric Toothbrush": (70.0, {"color": _COLOURS, "speed settings": ("low", "high", "adjustable")}),
    "Yoga Mat": (36.0, {"thickness": ("4 mm", "5 mm", "6 mm"), "material": ("rubber", "cork", "foam")}),
    "Bicycle": (610.0, {"frame size": ("compact", "standard", "tall"), "type": ("road", "city", "mountain")}),
    "Camping Tent": (230.0, {"capacity": ("2 people", "4 people", "6 people"), "color": _COLOURS}),
    "Jigsaw Puzzle": (19.0, {"pieces": ("500", "1000", "1500"), "theme": ("animals", "trains", "art")}),
    "Skateboard": (75.0, {"deck": ("maple", "bamboo", "acrylic"), "length": ("28 inch", "31 inch", "34 inch")}),
}
"""Price and options by name."""

FIRST_NAMES: Final = (
    *("Ana", "Ben", "Chloe", "Daniel", "Emma", "Fatima", "George", "Hana", "Ivan", "Julia", "Kevin", "Lena", "Mason"),
    *("Nadia", "Omar", "Priya", "Quentin", "Rosa", "Samir", "Tara", "Uma", "Victor", "Wen", "Xenia", "Yusuf", "Zoe"),
)
LAST_NAMES: Final = (
    *("Adams", "Brown", "Chen", "Diaz", "Evans", "Fischer", "Garcia", "Hassan", "Ito", "Johnson", "Kim", "Lopez"),
    *("Moreau", "Nguyen", "Okafor", "Patel", "Quinn", "Rossi", "Silva", "Taylor", "Usman", "Vargas", "Wilson", "Young"),
)
STREETS: Final = ("Maple Drive", "Oak Street", "River Road", "Sunset Avenue", "Hill Lane", "Park Place", "Lake View")
CITIES: Final = (
    *(("Denver", "CO", "802"), ("Chicago", "IL", "606"), ("Austin", "TX", "787"), ("Seattle", "WA", "981")),
    *(("Boston", "MA", "021"), ("Phoenix", "AZ", "850"), ("Portland", "OR", "972"), ("Atlanta", "GA", "303")),
)
"""City, state, and the first digits of its zip codes."""
CARD_BRANDS: Final = ("visa", "mastercard")
