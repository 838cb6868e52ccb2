"""A shop's products, and the index that finds them."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.envs.webshop.pages import RESULTS_PER_PAGE
from agentgym.envs.webshop.product import Product
from agentgym.tools.retrieval.bm25 import SearchIndex


class Catalogue:
    """Products by position and by ASIN, with a search over them; never changes, so that environments share it.

    Args:
        products: what the shop sells; ASINs differ.
        families: for each product the position of the first that it is a variant of, itself where it is none's; by
            default no product is a variant.
        results_per_page: how many of a search's results a page shows; WebShop's ten by default.
    """

    def __init__(
        self,
        products: Sequence[Product],
        families: Sequence[int] | None = None,
        results_per_page: int = RESULTS_PER_PAGE,
    ) -> None:
        self.results_per_page = results_per_page
        self.products = tuple(products)
        self.families = tuple(range(len(self.products)) if families is None else families)
        self.index = SearchIndex(search_text(product) for product in self.products)
        self._places = {product.asin.lower(): place for place, product in enumerate(self.products)}

    def place_of(self, asin: str) -> int:
        """Position of a product by its ASIN, in either case.

        Raises:
            KeyError: if there is none.
        """
        return self._places[asin.lower()]


def search_text(product: Product) -> str:
    """Return the text that a product is found by: name, description, first feature and options, as WebShop's index."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return " ".join((product.name, product.description, *product.features[:1], options))
