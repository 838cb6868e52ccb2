"""Generated products and goals, and the search over them."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest

from agentgym.envs.webshop.assortment import kiosk_catalogue
from agentgym.envs.webshop.catalogue import search_text
from agentgym.envs.webshop.env import WebShopEnv
from agentgym.envs.webshop.generator import generated_catalogue
from agentgym.envs.webshop.goals import goal_of_seed, places_of_split, price_limit
from agentgym.envs.webshop.pages import item_page
from agentgym.envs.webshop.product import NO_PRICE_LIMIT
from agentgym.envs.webshop.vocabulary import kinds
from agentgym.errors import UnknownNameError
from agentgym.tools.retrieval.bm25 import K1, B, SearchIndex, terms_of


def test_a_catalogue_has_every_department_and_no_asin_twice() -> None:
    products = generated_catalogue(1_000, 0).products
    assert len({product.asin for product in products}) == 1_000
    assert all(len(product.asin) == 10 and product.asin.isupper() for product in products)
    assert {product.category for product in products} == {"beauty", "electronics", "fashion", "garden", "grocery"}
    assert {product.query for product in products} == {kind.query for kind in kinds()}
    for product in products:
        assert product.prices[0] <= product.price <= product.prices[-1]
        assert all(values for values in product.options.values())


def test_every_attribute_can_be_read_on_the_products_pages() -> None:
    for product in generated_catalogue(1_000, 0).products:
        pages = " ".join((product.name, product.description, *product.features)).lower()
        assert all(attribute in pages for attribute in product.attributes), product


def test_another_seed_gives_other_products_and_a_larger_shop_begins_like_a_smaller_one() -> None:
    small, large = generated_catalogue(100, 1), generated_catalogue(200, 1)
    assert large.products[:100] == small.products
    assert generated_catalogue(100, 2).products != small.products


def test_families_are_near_duplicates() -> None:
    catalogue = generated_catalogue(1_000, 0)
    variants = [(place, family) for place, family in enumerate(catalogue.families) if place != family]
    assert 200 < len(variants) < 400
    for place, family in variants:
        one, other = catalogue.products[place], catalogue.products[family]
        assert family < place
        assert (one.query, one.name.split()[0]) == (other.query, other.name.split()[0])


def test_kinds_have_enough_to_choose_from() -> None:
    for kind in kinds():
        assert len(kind.heads) >= 2 and kind.dollars[0] < kind.dollars[1]
        assert len(kind.attributes.is_) >= 4 and len(kind.attributes.has) >= 3 and len(kind.attributes.suits) >= 3
        assert len(set(kind.attributes)) == len(list(kind.attributes))
        assert all(len(option.values) >= 4 for option in kind.options)


# -------------------------------------------------------------------------------------------------------------- goals


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_goal_says_everything_that_is_scored(split: str) -> None:
    catalogue = generated_catalogue(1_000, 0)
    for seed in range(300):
        goal = goal_of_seed(catalogue, split, seed)
        product = catalogue.products[catalogue.place_of(goal.asin)]
        assert set(goal.attributes) <= set(product.attributes) and goal.attributes
        assert all(attribute in goal.instruction for attribute in goal.attributes)
        assert all(f": {value}" in goal.instruction for value in goal.options)
        assert goal.query in goal.instruction
        assert product.price < goal.price_upper
        limit = f", and price lower than {goal.price_upper:.2f} dollars"
        assert goal.instruction.endswith(limit) == (goal.price_upper != NO_PRICE_LIMIT)


def test_each_split_has_its_share_of_the_products() -> None:
    catalogue = generated_catalogue(1_000, 0)
    shares = [places_of_split(catalogue, split) for split in ("train", "valid", "test")]
    assert sorted(place for places in shares for place in places) == list(range(1_000))
    assert 500 < len(shares[0]) < 700 and min(map(len, shares)) > 130


def test_limits_are_among_the_next_four_tens() -> None:
    limits = {price_limit(25.0, random.Random(seed))[0] for seed in range(50)}
    assert limits == {40.0, 50.0, 60.0}
    assert price_limit(979.0, random.Random(0)) == (990.0, ", and price lower than 990.00 dollars")
    assert price_limit(980.0, random.Random(0))[0] == NO_PRICE_LIMIT


# ------------------------------------------------------------------------------------------------------------- search


def naive_scores(texts: list[str], query: str) -> list[float]:
    """BM25 as its formula reads."""
    documents = [terms_of(text) for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        score = 0.0
        for term in terms_of(query):
            held = sum(term in other for other in documents)
            if held:
                count = document.count(term)
                rarity = math.log(1 + (len(documents) - held + 0.5) / (held + 0.5))
                score += rarity * count / (count + K1 * (1 - B + B * len(document) / mean))
        scores.append(score)
    return scores


def test_search_ranks_by_the_formula() -> None:
    products = generated_catalogue(200, 0).products
    texts = [search_text(product) for product in products]
    index = SearchIndex(texts)
    for query in ("easy clean coffee tables", "wine red men's polos xx-large", "gluten free gluten free popcorn"):
        scores = naive_scores(texts, query)
        found = index.search(query)
        assert len(found) == min(50, sum(score > 0 for score in scores))
        ranked = [scores[place] for place in found]
        assert all(one >= other - 1e-3 for one, other in pairwise(ranked))
        left_out = [score for place, score in enumerate(scores) if place not in found]
        assert max(left_out, default=0.0) <= ranked[-1] + 1e-3


def test_equals_keep_their_order_also_at_the_cut() -> None:
    index = SearchIndex(["mug"] * 120 + ["mug mug"])
    assert index.search("mug") == (120, *range(49))
    assert SearchIndex(["red mug"] * 120).search("mug") == tuple(range(50))


def test_order_of_words_does_not_matter_and_nothing_is_found_for_nothing() -> None:
    index = generated_catalogue(200, 0).index
    words = ["easy", "clean", "desk", "with", "steel", "frame"]
    shuffled = [words[place] for place in np.random.default_rng(0).permutation(len(words))]
    assert index.search(" ".join(words)) == index.search(" ".join(shuffled))
    assert index.search("") == index.search("the of") == index.search("xyzzy") == ()
    assert SearchIndex([]).search("mug") == ()


# ------------------------------------------------------------------------------------------------------------- kiosk


def test_the_kiosk_is_a_shop_of_short_pages() -> None:
    catalogue = kiosk_catalogue(200, 0)
    assert len({product.asin for product in catalogue.products}) == 200
    assert len({product.query for product in catalogue.products}) == 8
    for product in catalogue.products:
        assert all(attribute in product.name.lower() for attribute in product.attributes)
        assert product.price == product.prices[0] == int(product.price) < 100
        assert len(item_page("", product)) < 400
    assert kiosk_catalogue(200, 1).products != catalogue.products
    for place, family in enumerate(catalogue.families):
        assert family <= place and catalogue.products[family].name == catalogue.products[place].name


def test_the_kiosk_shows_four_results_a_page() -> None:
    env = WebShopEnv(stock="kiosk", num_products=200, interface="text")
    env.reset(seed=0)
    first = env.step("search[desks]")[0][0].text
    second = env.step("click[next >]")[0][0].text
    assert [text.count(" [SEP] B") - text.count(" [SEP] Back") for text in (first, second)] == [4, 4]
    assert env.visit.view.results[:4] != env.visit.view.results[4:8]
    task = env.tasks("train")[0]
    other = WebShopEnv(interface="text")  # a task is the same in every shop
    other.reset(options={"task": task})
    assert other.visit.catalogue is kiosk_catalogue(200, 0)


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_kiosks_goals_can_be_met(split: str) -> None:
    env = WebShopEnv(stock="kiosk", num_products=200, max_turns=8)
    for number in range(100):
        env.reset(options={"task": number, "split": split})
        while not env.step(env.oracle())[2]:
            pass
        assert env.score.reward == 1.0


def test_there_are_two_stocks() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'kiosk'"):
        WebShopEnv(stock="kiosks")  # type: ignore[arg-type]
