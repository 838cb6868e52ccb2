"""The shop's pages as text, in the words and the order of WebShop's simple text mode, and what can be clicked on them.

A page is its visible pieces of text joined by ``[SEP]``. Source: princeton-nlp/WebShop at 64fa2a5, the templates and
``web_agent_site/envs/web_agent_text_env.py``; the tests compare with four real pages.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.envs.webshop.product import Product

SEPARATOR = " [SEP] "
RESULTS_PER_PAGE = 10

BACK, PREVIOUS, NEXT, BUY = "Back to Search", "< Prev", "Next >", "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews")


def search_page(instruction: str) -> str:
    """Return the page on which a customer begins.

    Example:
        >>> search_page("i need a mug")
        'WebShop [SEP] Instruction: [SEP] i need a mug [SEP] Search'
    """
    return SEPARATOR.join(("WebShop", "Instruction:", instruction, "Search"))


def results_page(instruction: str, products: Sequence[Product], page_number: int, num_results: int) -> str:
    """Return a page of search results. Pages count from 1, and every page links to a next one, which may be empty."""
    pieces = ["Instruction:", instruction, BACK, f"Page {page_number} (Total results: {num_results})"]
    pieces += (PREVIOUS, NEXT) if page_number > 1 else (NEXT,)
    for product in products:
        pieces += (product.asin, product.name, product.price_tag)
    return SEPARATOR.join(pieces)


def item_page(instruction: str, product: Product) -> str:
    """Return a product with its options; which of them are chosen is not shown, as in WebShop's text mode."""
    pieces = ["Instruction:", instruction, BACK, PREVIOUS]
    for name, values in product.options.items():
        pieces += (name, *values)
    pieces += (product.name, f"Price: {product.price_tag}", "Rating: N.A.", *SUB_PAGES, BUY)
    return SEPARATOR.join(pieces)


def sub_page(instruction: str, product: Product, name: str) -> str:
    """Return a product's description or features; there are no reviews, as there are none in WebShop's data."""
    pieces = ["Instruction:", instruction, BACK, PREVIOUS]
    if name == "Description" and product.description:
        pieces.append(product.description.strip())
    elif name == "Features":
        pieces += [feature.strip() for feature in product.features]
    return SEPARATOR.join(pieces)


def done_page(reward: float) -> str:
    """Return the page after the purchase. WebShop's page also shows a code for its annotators.

    Example:
        >>> done_page(0.5)
        'Thank you for shopping with us! [SEP] Your score (min 0.0, max 1.0) [SEP] 0.5'
    """
    return SEPARATOR.join(("Thank you for shopping with us!", "Your score (min 0.0, max 1.0)", str(reward)))


def result_clickables(products: Sequence[Product], page_number: int) -> tuple[str, ...]:
    """Return what can be clicked on a page of results, in lower case."""
    buttons = (BACK, PREVIOUS, NEXT) if page_number > 1 else (BACK, NEXT)
    return tuple(text.lower() for text in (*buttons, *(product.asin for product in products)))


def item_clickables(product: Product) -> tuple[str, ...]:
    """Return what can be clicked on a product's page, in lower case."""
    values = [value for choices in product.options.values() for value in choices]
    buttons = [text.lower() for text in (BACK, PREVIOUS, *SUB_PAGES, BUY)]
    return tuple(dict.fromkeys((*buttons, *values)))
