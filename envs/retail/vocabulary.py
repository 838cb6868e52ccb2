"""What the generated shop is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

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
