"""What a page of products shows: the search, the filters and the page, as they stand in its address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import parse_qsl, urlencode, urlsplit

from agentgym.envs.webshop.catalogue import Catalogue
from agentgym.envs.webshop.product import Product


@dataclass(frozen=True, slots=True)
class Listing:
    """A search with its filters; filters narrow what the search found, which is 50 products at most.

    Example:
        >>> listing = Listing.of({"q": "red mug", "to": "20", "page": "2"})
        >>> listing.url, listing.at_page(1).url
        ('/search?q=red+mug&to=20&page=2', '/search?q=red+mug&to=20')
    """

    query: str = ""
    category: str = ""
    low: float | None = None
    high: float | None = None
    page: int = 1

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Listing:
        """From the fields of an address; what is no number counts as not given."""
        page = fields.get("page", "")
        return cls(
            fields.get("q", "").strip(),
            fields.get("category", ""),
            _dollars(fields.get("from", "")),
            _dollars(fields.get("to", "")),
            int(page) if page.isdecimal() and len(page) < 6 and int(page) else 1,
        )

    @classmethod
    def of_url(cls, url: str) -> Listing:
        """From a whole address."""
        return cls.of(dict(parse_qsl(urlsplit(url).query)))

    @property
    def url(self) -> str:
        """The address within the shop."""
        given = {"q": self.query, "category": self.category}
        given |= {
            "from": "" if self.low is None else f"{self.low:g}",
            "to": "" if self.high is None else f"{self.high:g}",
        }
        given["page"] = str(self.page) if self.page > 1 else ""
        return f"/search?{urlencode({name: value for name, value in given.items() if value})}"

    def at_page(self, page: int) -> Listing:
        """Another page of the same."""
        return replace(self, page=page)

    def places(self, catalogue: Catalogue) -> tuple[int, ...]:
        """Positions of all the products, best first; without words to search for, all of the shop in its order."""
        found = catalogue.index.search(self.query.lower()) if self.query else range(len(catalogue.products))
        return tuple(place for place in found if self._lets(catalogue.products[place]))

    def _lets(self, product: Product) -> bool:
        price = product.prices[0]  # the lowest, which pages show first
        is_right_price = (self.low is None or price >= self.low) and (self.high is None or price <= self.high)
        return is_right_price and self.category in ("", product.category)


@lru_cache(maxsize=8)
def categories(catalogue: Catalogue) -> tuple[str, ...]:
    """The shop's departments."""
    return tuple(sorted({product.category for product in catalogue.products}))


def num_pages(catalogue: Catalogue, num_found: int) -> int:
    """How many pages there are; one at least."""
    return max(1, -(-num_found // catalogue.results_per_page))


def _dollars(text: str) -> float | None:
    digits = text.strip().removeprefix("$")
    try:
        value = float(digits)
    except ValueError:
        return None
    return value if 0 <= value < 1e9 else None
