"""The shop's pages say what WebShop's real pages say, piece by piece."""

from __future__ import annotations

import html
import re

from testkit.webshop_data import needs_webshop_data, page_source, page_text, prices_of

from agentgym.envs.webshop import pages
from agentgym.envs.webshop.product import Product

INSTRUCTION = (
    "i want an xx-small sized slim fit button down shirt with long sleeves. pick something in white, "
    "and price lower than 50.00 dollars"
)


def product(**fields: object) -> Product:
    blank: dict[str, object] = {
        "asin": "B09P87V3LZ",
        "name": "Shoe",
        "category": "fashion",
        "query": "shoes",
        "product_category": "a › b",
        "attributes": (),
        "description": "",
        "features": (),
        "prices": (100.0,),
        "price": 100.0,
        "options": {},
    }
    return Product(**{**blank, **fields})  # type: ignore[arg-type]


def infos(name: str) -> tuple[str, ...]:
    """The texts of a real page's description or features, markup left out."""
    return tuple(html.unescape(text) for text in re.findall(r'<p class="product-info">(.*?)</p>', page_source(name)))


@needs_webshop_data
def test_a_results_page_is_the_real_one() -> None:
    source = page_source("mock_parse_results_ws.html")
    shown = re.findall(
        r'product-link" href="[^"]*">(\w+)</a>.*?product-title">(.*?)</h5>.*?product-price">(.*?)</h6>', source, re.S
    )
    found = [product(asin=asin, name=html.unescape(name), prices=prices_of(tag)) for asin, name, tag in shown]
    assert len(found) == pages.RESULTS_PER_PAGE
    assert pages.results_page(INSTRUCTION, found, 1, 50) == page_text("mock_parse_results_ws.html")


@needs_webshop_data
def test_an_item_page_is_the_real_one() -> None:
    name = re.findall("<h2>(.*?)</h2>", page_source("mock_parse_item_page_ws.html"))[0]
    shoe = product(name=name, options={"color": ("black", "purple", "red"), "size": ("6.5", "7.5", "8", "8.5", "9")})
    assert pages.item_page(INSTRUCTION, shoe) == page_text("mock_parse_item_page_ws.html")


@needs_webshop_data
def test_a_description_and_features_are_the_real_ones() -> None:
    (description,) = infos("mock_parse_item_page_ws_desc.html")
    shoe = product(description=description, features=infos("mock_parse_item_page_ws_feat.html"))
    assert pages.sub_page(INSTRUCTION, shoe, "Description") == page_text("mock_parse_item_page_ws_desc.html")
    assert pages.sub_page(INSTRUCTION, shoe, "Features") == page_text("mock_parse_item_page_ws_feat.html")


@needs_webshop_data
def test_the_buttons_of_the_real_pages_can_be_clicked_here() -> None:
    shoe = product(options={"color": ("black", "purple", "red"), "size": ("6.5", "7.5", "8", "8.5", "9")})
    shown = [
        product(asin=asin)
        for asin in re.findall(r"product-link[^>]*>(\w+)<", page_source("mock_parse_results_ws.html"))
    ]
    for name, clickables in (
        ("mock_parse_results_ws.html", pages.result_clickables(shown, 1)),
        ("mock_parse_item_page_ws.html", pages.item_clickables(shoe)),
    ):
        source = re.sub(r"<!--.*?-->", "", page_source(name), flags=re.S)
        buttons = re.findall(r"<button[^>]*>(.*?)</button>", source)
        links = re.findall(r'<a class="product-link"[^>]*>(.*?)</a>', source)
        values = re.findall(r'<input type="radio"[^>]* value="(.*?)"', source)
        assert set(clickables) == {html.unescape(text).lower() for text in (*buttons, *links, *values)}


def test_later_pages_lead_back_and_empty_ones_have_no_products() -> None:
    text = pages.results_page("i need a shoe", [], 6, 50)
    assert text == (
        "Instruction: [SEP] i need a shoe [SEP] Back to Search [SEP] Page 6 (Total results: 50) [SEP] < Prev "
        "[SEP] Next >"
    )
    assert pages.result_clickables([], 6) == ("back to search", "< prev", "next >")


def test_a_page_of_reviews_is_empty() -> None:
    text = pages.sub_page("i need a shoe", product(), "Reviews")
    assert text == "Instruction: [SEP] i need a shoe [SEP] Back to Search [SEP] < Prev"
    assert pages.sub_page("i need a shoe", product(), "Description") == text
