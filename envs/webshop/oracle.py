"""The gold policy: finds the product that a goal was made from, chooses its options, and buys it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from agentgym.envs.webshop import pages
from agentgym.envs.webshop.catalogue import Catalogue, search_text
from agentgym.envs.webshop.product import Goal
from agentgym.envs.webshop.reward import count_options
from agentgym.envs.webshop.visit import Visit, option_of


def next_act(visit: Visit) -> Act:
    """Return the act that leads to the goal from where the customer is."""
    view, target = visit.view, visit.catalogue.place_of(visit.goal.asin)
    if view.page == "search":
        return Act("search", best_query(visit.catalogue, visit.goal))
    if view.page == "results":
        if target not in view.results:
            return Act("click", pages.BACK.lower())
        page_number = view.results.index(target) // visit.catalogue.results_per_page + 1
        if page_number == view.page_number:
            return Act("click", visit.goal.asin.lower())
        return Act("click", (pages.NEXT if page_number > view.page_number else pages.PREVIOUS).lower())
    if view.product != target:
        on = target in view.results or view.page == "sub"
        return Act("click", (pages.PREVIOUS if on else pages.BACK).lower())
    if view.page == "sub":
        return Act("click", pages.PREVIOUS.lower())
    chosen = dict(view.options)
    for name, value in _wanted(visit):
        if chosen.get(name) != value:
            return Act("click", value)
    return Act("click", pages.BUY.lower())


def best_query(catalogue: Catalogue, goal: Goal) -> str:
    """Return the first query that shows the goal's product on page 1, else the first that finds it at all."""
    place = catalogue.place_of(goal.asin)
    found: str | None = None
    for query in _queries(catalogue, goal):
        results = catalogue.index.search(query)
        if place in results[: catalogue.results_per_page]:
            return query
        if place in results and found is None:
            found = query
    return goal.name.lower() if found is None else found


def _queries(catalogue: Catalogue, goal: Goal) -> Iterator[str]:
    """Yield queries, from a customer's words to the product's own text."""
    wishes = " ".join((*goal.attributes, goal.query))
    yield wishes
    yield " ".join((wishes, *goal.options))
    yield goal.name.lower()
    yield search_text(catalogue.products[catalogue.place_of(goal.asin)]).lower()


def _wanted(visit: Visit) -> Iterator[tuple[str, str]]:
    """Yield the options that the goal asks for, as the product words them."""
    values = [value for choices in visit.product.options.values() for value in choices]
    for wanted in visit.goal.options:
        fitting = [value for value in values if value == wanted] or [
            value for value in values if count_options([wanted], [value])
        ]
        if fitting:
            yield option_of(visit.product, fitting[0]), fitting[0]


# ----------------------------------------------- WebShop's actions as text: ``search[keywords]`` and ``click[element]``

_ACTION = re.compile(r"(search|click)\[(.+)\]")


class Act(NamedTuple):
    """One action: ``search`` with keywords, or ``click`` with the text of what to click.

    Example:
        >>> str(Act("click", "buy now"))
        'click[buy now]'
    """

    name: str
    argument: str

    def __str__(self) -> str:
        return f"{self.name}[{self.argument}]"


def parse_act(text: str) -> Act | None:
    """Read an action from the last line of a text that is not empty; None if it begins with none.

    Case does not matter in the argument; what follows the last bracket is ignored, as in WebShop.

    Example:
        >>> parse_act("I should look for shoes.\\nsearch[Red Shoes]")
        Act(name='search', argument='red shoes')
        >>> parse_act("click buy now") is None
        True
    """
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    found = _ACTION.match(lines[-1]) if lines else None
    argument = found.group(2).strip().lower() if found else ""
    return Act(found.group(1), argument) if found and argument else None
