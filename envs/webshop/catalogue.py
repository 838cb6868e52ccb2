"""A shop's products, and the index that finds them."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.envs.webshop.pages import RESULTS_PER_PAGE
from agentgym.envs.webshop.product import Product
from agentgym.tools.retrieval.bm25 import SearchIndex


class Catalogue:
    """Products by position and by ASIN, with a search over them. It never changes, so environments share it.

    Args:
        products: the shop's products, with distinct ASINs.
        families: for each product, the position of the first product of its family, which is its own position if it is
            no variant; by default no product is a variant.
        results_per_page: results of a search on one page; by default ten, as in WebShop.
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
        """Return the position of a product by its ASIN, in upper or lower case.

        Raises:
            KeyError: if there is none.
        """
        return self._places[asin.lower()]


def search_text(product: Product) -> str:
    """Return the text that a product is found by: name, description, first feature and options, as WebShop's index."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return " ".join((product.name, product.description, *product.features[:1], options))
