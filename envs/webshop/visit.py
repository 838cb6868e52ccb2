"""A customer's visit to the shop: the current page, and how searching and clicking change it.

The rules are those of WebShop's text environment (princeton-nlp/WebShop at 64fa2a5): a search is possible everywhere,
everything else by clicking what the page shows; chosen options are forgotten when a product's page is left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from agentgym.envs.webshop import pages
from agentgym.envs.webshop.catalogue import Catalogue
from agentgym.envs.webshop.product import Goal, Product
from agentgym.envs.webshop.reward import Score, score_purchase

Page = Literal["search", "results", "item", "sub", "done"]


@dataclass(frozen=True, slots=True)
class View:
    """A customer's place in the shop; all that the rest of the episode depends on.

    Example:
        >>> View("results", results=(7, 3)).page_number
        1
    """

    page: Page = "search"
    results: tuple[int, ...] = ()
    """Positions in the catalogue of the last search's results, best first."""
    page_number: int = 1
    """Number of the shown page of results, or of the one from which the product's page was opened."""
    product: int = -1
    """Position of the product whose page, or sub-page, is shown; -1 where none is."""
    sub_page: str = ""
    options: tuple[tuple[str, str], ...] = ()
    """Chosen values with the option's name before each, in order of name."""


class Visit:
    """One customer with one goal in one shop."""

    def __init__(self, catalogue: Catalogue, goal: Goal, view: View | None = None) -> None:
        self.catalogue = catalogue
        self.goal = goal
        self.view = View() if view is None else view
        self._scored: tuple[View, Score] | None = None  # the last score, which page, reward and record all read

    # ------------------------------------------------------------------------------------------------------ actions

    def search(self, keywords: str) -> None:
        """Search, and show the first page of results."""
        self.view = View("results", self.catalogue.index.search(keywords.lower()))

    def click(self, element: str) -> bool:
        """Click a button, an ASIN or an option's value, in upper or lower case; return False if the page lacks it."""
        element = element.lower()
        if element not in self.clickables():
            return False
        view = self.view
        if element == pages.BACK.lower():
            self.view = View()
        elif view.page == "results":
            self._click_result(element)
        elif view.page == "sub":
            self.view = replace(view, page="item", sub_page="")
        else:
            self._click_item(element)
        return True

    def _click_result(self, element: str) -> None:
        view = self.view
        if element == pages.NEXT.lower():
            self.view = replace(view, page_number=view.page_number + 1)
        elif element == pages.PREVIOUS.lower():
            self.view = replace(view, page_number=view.page_number - 1)
        else:
            self.view = replace(view, page="item", product=self.catalogue.place_of(element))

    def _click_item(self, element: str) -> None:
        view = self.view
        if element == pages.BUY.lower():
            self.view = replace(view, page="done")
        elif element == pages.PREVIOUS.lower():
            self.view = View("results", view.results, view.page_number)
        elif element.capitalize() in pages.SUB_PAGES:
            self.view = replace(view, page="sub", sub_page=element.capitalize())
        else:
            name = option_of(self.product, element)
            self.view = replace(view, options=tuple(sorted({**dict(view.options), name: element}.items())))

    # ----------------------------------------------------------------------------------------------- the current page

    @property
    def product(self) -> Product:
        """The product whose page, or sub-page, is shown."""
        return self.catalogue.products[self.view.product]

    def shown_products(self) -> list[Product]:
        """Return the products on the current page of results."""
        size = self.catalogue.results_per_page
        places = self.view.results[(self.view.page_number - 1) * size : self.view.page_number * size]
        return [self.catalogue.products[place] for place in places]

    def clickables(self) -> tuple[str, ...]:
        """Return what can be clicked, in lower case."""
        view = self.view
        if view.page == "results":
            return pages.result_clickables(self.shown_products(), view.page_number)
        if view.page == "item":
            return pages.item_clickables(self.product)
        if view.page == "sub":
            return (pages.BACK.lower(), pages.PREVIOUS.lower())
        return ()

    def text(self) -> str:
        """Return the current page as text."""
        view, instruction = self.view, self.goal.instruction
        if view.page == "search":
            return pages.search_page(instruction)
        if view.page == "results":
            return pages.results_page(instruction, self.shown_products(), view.page_number, len(view.results))
        if view.page == "item":
            return pages.item_page(instruction, self.product)
        if view.page == "sub":
            return pages.sub_page(instruction, self.product, view.sub_page)
        return pages.done_page(self.score().reward)

    def score(self) -> Score:
        """Return the score of buying the current product with the chosen options."""
        if self._scored is None or self._scored[0] is not self.view:
            score = score_purchase(self.goal, self.product, [value for _, value in self.view.options])
            self._scored = (self.view, score)
        return self._scored[1]


def option_of(product: Product, value: str) -> str:
    """Return the option that a value belongs to; the last one if there are several, as in WebShop."""
    return next(name for name in reversed(list(product.options)) if value in product.options[name])
