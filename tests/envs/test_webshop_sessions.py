"""Recorded human sessions, walked through again page by page, end in the recorded reward.

What the recording lacks is the text of the products. Each product that was found is made up here so that it agrees
with what was recorded: of the bought one, the matches of kind and the number of attributes; options and price are the
recorded ones. So the way through the pages, the options, the price and the formula are put to the test, and the
matching of attributes and kinds only in that it gives back what was put in.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from testkit.webshop_data import needs_webshop_data, sessions

from agentgym.envs.webshop.catalogue import Catalogue
from agentgym.envs.webshop.oracle import parse_act
from agentgym.envs.webshop.product import Goal, Product
from agentgym.envs.webshop.reward import nouns
from agentgym.envs.webshop.visit import Visit

NAMES = ("20220427_1_12", "20220427_1_13", "20220427_1_15", "20220427_1_17", "20220427_1_18")


def goal_of(done: dict[str, Any]) -> Goal:
    goal = done["goal"]
    return Goal(
        asin=goal["asin"],
        name=goal["name"],
        query=goal["query"],
        product_category=goal["product_category"],
        instruction=goal["instruction_text"],
        attributes=tuple(goal["attributes"]),
        options=tuple(goal["goal_options"]),
        price_upper=goal["price_upper"],
    )


def catalogue_of(recorded: list[dict[str, Any]]) -> Catalogue:
    """What the session's searches found, each product with the keywords in such an order that they are no phrase."""
    keywords: dict[str, list[str]] = {}
    for page in recorded:
        for asin in page.get("content", {}).get("search_result_asins", ()):
            keywords.setdefault(asin, []).extend(reversed(page["content"]["keywords"]))
    done = recorded[-1]
    products = []
    for asin, words in keywords.items():
        fields: dict[str, Any] = {"asin": asin, "name": "", "query": "", "product_category": "", "attributes": ()}
        fields |= {"options": {}, "price": 100.0}
        if asin == done["content"]["asin"]:
            fields |= bought(done)
        prices = (fields["price"],)
        products.append(Product(**fields, category="", description=" / ".join(words), features=(), prices=prices))
    return Catalogue(products)


def bought(done: dict[str, Any]) -> dict[str, Any]:
    goal, info, content = done["goal"], done["reward_info"], done["content"]
    words = list(dict.fromkeys(nouns(goal["name"])))
    num_shared = round(info["title_score"] * len(nouns(goal["name"])))
    return {
        "name": ", ".join(reversed(words[:num_shared])),
        "query": goal["query"] if info["query_match"] else "another kind",
        "product_category": goal["product_category"] if info["category_match"] else "another › path",
        "attributes": tuple(goal["attributes"][: round(info["r_att"] * len(goal["attributes"]))]),
        "options": {name: (value, f"another {name}") for name, value in content["options"].items()},
        "price": content["price"],
    }


def actions_of(recorded: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The action that leads to each recorded page, and the page; loading a page again is none."""
    actions = []
    for before, page in pairwise(recorded):
        content = page.get("content", {})
        match page["page"]:
            case "index":
                action = "" if before["page"] == "index" else "click[back to search]"
            case "search_results" if before["page"] == "item_page":
                action = "click[< prev]"
            case "search_results":
                action = f"search[{' '.join(content['keywords'])}]"
            case "item_page" if before["page"] == "search_results":
                action = f"click[{content['asin']}]"
            case "item_page":
                (value,) = set(content["options"].items()) - set(before["content"]["options"].items())
                action = f"click[{value[1]}]"
            case _:
                action = "click[buy now]"
        if action:
            actions.append((action, page))
    return actions


def check_page(visit: Visit, page: dict[str, Any]) -> None:
    """The customer is where the recording says, with the recorded choices."""
    kinds = {"search": "index", "results": "search_results", "item": "item_page", "done": "done"}
    assert kinds[visit.view.page] == page["page"]

    content = page.get("content", {})
    if page["page"] == "search_results":
        assert visit.view.page_number == content["page"]
    if page["page"] in ("item_page", "done"):
        assert visit.product.asin == content["asin"]
        assert dict(visit.view.options) == content["options"]


@needs_webshop_data
@pytest.mark.parametrize("name", NAMES)
def test_a_session_ends_in_its_recorded_reward(name: str) -> None:
    recorded = sessions()[name]
    done, info = recorded[-1], recorded[-1]["reward_info"]
    visit = Visit(catalogue_of(recorded), goal_of(done))
    for action, page in actions_of(recorded):
        act = parse_act(action)
        assert act is not None
        if act.name == "search":
            visit.search(act.argument)
        else:
            assert visit.click(act.argument), (action, visit.text())
        check_page(visit, page)
    score = visit.score()
    match = score.type_match
    assert (match.r_type, match.query_match, match.category_match) == (
        info["r_type"],
        info["query_match"],
        info["category_match"],
    )
    assert match.title_score == pytest.approx(info["title_score"], abs=0.05)  # ours counts nouns a little differently
    assert (score.r_att, score.r_option, score.r_price) == (info["r_att"], info.get("r_option"), info["r_price"])
    assert score.reward == done["reward"]
    assert visit.text().endswith(str(done["reward"]))


@needs_webshop_data
def test_there_are_no_other_sessions() -> None:
    assert tuple(sessions()) == NAMES
