"""The shop as a site of an episode: its pages, the cart and the order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agentgym.envs.gui.site import Request, Response
from agentgym.envs.webshop.catalogue import Catalogue
from agentgym.envs.webshop.product import Product

_FOLDER = Path(__file__).parent / "templates"
_PAGES = re.compile(r"/|/search|/style\.css|/cart|/cart/remove|/checkout|/thanks|/product/[^/]+")
_HEADERS = {"cache-control": "private"}  # otherwise the browser would request a page again on going back


@dataclass(frozen=True, slots=True)
class Line:
    """One product in a cart or an order, with the chosen value of each of its options."""

    number: int
    asin: str
    options: Mapping[str, str]


class ShopSite:
    """One customer's shop, with an empty cart at first.

    Example:
        >>> from agentgym.envs.webshop.generator import generated_catalogue
        >>> shop = ShopSite(generated_catalogue(200, seed=0))
        >>> shop.add("B01", {"color": "red"})
        >>> shop.place_order()
        >>> shop.cart, shop.order
        ((), (Line(number=1, asin='B01', options={'color': 'red'}),))
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.cart: tuple[Line, ...] = ()
        self.order: tuple[Line, ...] = ()
        """The ordered lines; empty until the one order is placed."""

    def add(self, asin: str, options: Mapping[str, str]) -> None:
        """Put a product into the cart."""
        number = max((line.number for line in self.cart), default=0) + 1
        self.cart = (*self.cart, Line(number, asin, dict(sorted(options.items()))))

    def remove(self, number: int) -> None:
        """Take a line out of the cart, if it is there."""
        self.cart = tuple(line for line in self.cart if line.number != number)

    def place_order(self) -> None:
        """Order the contents of the cart and empty it; does nothing after the first order."""
        if self.cart and not self.order:
            self.cart, self.order = (), self.cart

    async def answer(self, request: Request) -> Response:
        """Return a page, or carry out a form and redirect."""
        path = request.path
        if not _PAGES.fullmatch(path):
            is_page = path.endswith("/") and _PAGES.fullmatch(path[:-1])
            return _led_to(path[:-1], 307) if is_page else _refused(404, "Not Found")
        if path == "/style.css":
            return Response(body=_style(), content_type="text/css; charset=utf-8", headers=_HEADERS)
        if path.startswith("/product/"):
            return self._product(path.removeprefix("/product/"), request)
        if path == "/search":
            return self._search(Listing.of(request.query))
        if path == "/checkout":
            return self._checkout(request.method)
        if path.startswith("/cart"):
            return self._cart(request)
        return self._page("home" if path == "/" else "thanks")

    # ---------------------------------------------------------------------------------------------------- private

    def _product(self, asin: str, request: Request) -> Response:
        try:
            product = self.catalogue.products[self.catalogue.place_of(asin)]
        except KeyError:
            return _rendered("problem", 404, problem=f"The shop sells no product {asin!r}.")
        if request.method != "POST":
            return self._page("product", product=product, chosen={}, problem="")
        chosen = {name: request.form.get(f"option {name}", "") for name in product.options}
        missing = [name for name, value in chosen.items() if value not in product.options[name]]
        if missing:
            return self._page(
                "product", product=product, chosen=chosen, problem=f"Please choose: {', '.join(missing)}."
            )
        self.add(product.asin, chosen)
        return _led_to("/cart")

    def _search(self, listing: Listing) -> Response:
        found, size = listing.places(self.catalogue), self.catalogue.results_per_page
        last = num_pages(self.catalogue, len(found))
        listing = listing.at_page(min(listing.page, last))
        shown = [self.catalogue.products[place] for place in found[(listing.page - 1) * size : listing.page * size]]
        return self._page("search", listing=listing, num_found=len(found), last=last, products=shown)

    def _cart(self, request: Request) -> Response:
        if request.path == "/cart":
            return self._page("cart", **self._bill())
        if request.method != "POST":
            return _refused(405, "Method Not Allowed")
        number = request.form.get("line", "")
        self.remove(int(number) if number.isdecimal() else 0)
        return _led_to("/cart")

    def _checkout(self, method: str) -> Response:
        if method == "POST":
            self.place_order()
            return _led_to("/thanks")
        return self._page("checkout", **self._bill()) if self.cart else _led_to("/cart")

    def _bill(self) -> dict[str, object]:
        products = self.catalogue.products
        lines: list[tuple[Line, Product]] = [(line, products[self.catalogue.place_of(line.asin)]) for line in self.cart]
        return {"lines": lines, "total": sum(product.price for _, product in lines)}

    def _page(self, name: str, **values: object) -> Response:
        values = {"listing": Listing(), **values, "categories": categories(self.catalogue)}
        return _rendered(name, 200, num_in_cart=len(self.cart), **values)


def _rendered(name: str, status: int, **values: object) -> Response:
    body = _templates().get_template(f"{name}.html.jinja").render(**values)
    return Response(status=status, body=body.encode(), headers=_HEADERS)


def _refused(status: int, words: str) -> Response:
    body = f'{{"detail":"{words}"}}'.encode()
    return Response(status=status, body=body, content_type="application/json", headers=_HEADERS)


def _led_to(path: str, status: int = 303) -> Response:
    return Response(status=status, headers={**_HEADERS, "location": path})


@cache
def _templates() -> Environment:
    loader = FileSystemLoader(_FOLDER)
    return Environment(autoescape=True, loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


@cache
def _style() -> bytes:
    return (_FOLDER / "style.css").read_bytes()


# --------------------------------------- contents of a page of products, as in its URL: search, filters and page number


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
        """Return the listing of an address's fields; values that are not numbers but should be are ignored."""
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
        """Return the listing of a whole address."""
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
        """Return another page of the same listing."""
        return replace(self, page=page)

    def places(self, catalogue: Catalogue) -> tuple[int, ...]:
        """Return the found products' positions, best first; without a query, all products in the shop's order."""
        found = catalogue.index.search(self.query.lower()) if self.query else range(len(catalogue.products))
        return tuple(place for place in found if self._lets(catalogue.products[place]))

    def _lets(self, product: Product) -> bool:
        price = product.prices[0]  # the lowest, which pages show first
        is_right_price = (self.low is None or price >= self.low) and (self.high is None or price <= self.high)
        return is_right_price and self.category in ("", product.category)


@lru_cache(maxsize=8)
def categories(catalogue: Catalogue) -> tuple[str, ...]:
    """Return the shop's departments."""
    return tuple(sorted({product.category for product in catalogue.products}))


def num_pages(catalogue: Catalogue, num_found: int) -> int:
    """Return the number of pages, at least 1."""
    return max(1, -(-num_found // catalogue.results_per_page))


def _dollars(text: str) -> float | None:
    digits = text.strip().removeprefix("$")
    try:
        value = float(digits)
    except ValueError:
        return None
    return value if 0 <= value < 1e9 else None
