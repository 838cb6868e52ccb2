"""Products of a shop and goals of its customers: :class:`Product` and :class:`Goal`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NO_PRICE_LIMIT = 1_000_000.0
"""``Goal.price_upper`` of a goal that names no price, as WebShop has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product with everything that its pages show and its reward depends on.

    Example:
        >>> mug = Product(
        ...     asin="B000000001", name="Blue Mug", category="garden", query="mugs",
        ...     product_category="Home & Kitchen › Dining › Mugs", attributes=("dishwasher safe",),
        ...     description="", features=("Dishwasher safe",), prices=(8.5, 12.0), price=9.0,
        ...     options={"color": ("blue", "red")},
        ... )
        >>> mug.price_tag
        '$8.5 to $12.0'
    """

    asin: str
    name: str
    category: str
    """Department: beauty, electronics, fashion, garden, grocery."""
    query: str
    """The kind of product in lower case, such as ``coffee tables``."""
    product_category: str
    """Path of categories, joined by ``›``."""
    attributes: tuple[str, ...]
    """Attributes of two or three lower-case words each; no page lists them."""
    description: str
    features: tuple[str, ...]
    """Bullet points."""
    prices: tuple[float, ...]
    """The price in dollars, or the lowest and the highest."""
    price: float
    """Price when it is bought, in dollars."""
    options: Mapping[str, tuple[str, ...]]
    """Values to choose from, in lower case, by the option's name."""

    @property
    def price_tag(self) -> str:
        """The price as pages show it."""
        return " to ".join(f"${price}" for price in self.prices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A customer's wish, and the product that fulfils it."""

    asin: str
    name: str
    query: str
    product_category: str
    instruction: str
    """The request as the customer words it, the price limit included."""
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    """Values of options that the customer wants, in any order."""
    price_upper: float
    """Upper limit of the price in dollars; :data:`NO_PRICE_LIMIT` if the instruction names none."""
