"""The reward is WebShop's: its own test values, and the breakdowns of recorded sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from testkit.webshop_data import needs_webshop_data, sessions

from agentgym.envs.webshop import reward
from agentgym.envs.webshop.product import Goal, Product
from agentgym.envs.webshop.reward import (
    Score,
    TypeMatch,
    count_attributes,
    count_options,
    match_type,
    normalised_color,
    nouns,
    score_purchase,
    token_set_ratio,
)

SNEAKERS = "Mens D.O.N. Issue 2 Gca Basketball Sneakers Shoes Casual - Off White"
SOUNDBAR_CORD = "Saireed UL Listed 2 Prong Power Cord for JBL Bar 3.1 Bar 2.1 Channel 4K Ultra HD Soundbar"
THEATER_CORD = (
    "BRST AC Power Cord Outlet Socket Cable Plug Lead for Panasonic SC-HT830V DVD/VCR Combo Home Theater System"
)
TEA = ("tea tree", "essential oils", "natural ingredients")

GOAL = Goal(
    asin="B000000001",
    name=SNEAKERS,
    query="query 1",
    product_category="a › b › c",
    instruction="",
    attributes=TEA,
    options=("grey", "xl"),
    price_upper=40.0,
)
PRODUCT = Product(
    asin="B000000001",
    name=SNEAKERS,
    category="fashion",
    query="query 1",
    product_category="a › b › c",
    attributes=("tea tree", "essential oil", "natural ingredients"),
    description="",
    features=(),
    prices=(35.0,),
    price=35.0,
    options={"color": ("grey", "blue"), "size": ("xl",)},
)


# ------------------------------------------------------------------------------------------- values of WebShop's tests


def test_a_purchase_that_has_everything_is_worth_one() -> None:
    assert score_purchase(GOAL, PRODUCT, ["grey", "xl"]).reward == 1.0


def test_attributes_count_by_likeness_or_in_so_many_words() -> None:
    assert count_attributes(GOAL, PRODUCT) == 3
    assert count_attributes(GOAL, replace(PRODUCT, attributes=("essential oil", "natural ingredients"))) == 2
    worded = replace(
        PRODUCT,
        attributes=(),
        features=("This shampoo has essential oils and smells like lemons",),
        description="Best shampoo on the market, made with Natural Ingredients",
    )
    assert count_attributes(GOAL, worded) == 2
    other = replace(PRODUCT, attributes=("tea bag", "earl gray"), features=("Soothing aroma",), description="Tea")
    assert count_attributes(GOAL, other) == 0
    assert score_purchase(GOAL, worded, ["grey", "xl"]).reward == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    ("wanted", "chosen", "num_met"),
    [
        (["grey", "XL", "pack of 12"], ["pack of 12", "grey", "XL"], 3),
        (["grey", "XL", "pack of 12"], ["pack of 12", "blue", "XL"], 2),
        (["cool powder snow", "XL", "pack of 12"], ["pack of 12", "powder snow", "XL"], 3),
        ([], ["goal 1", "goal 2"], 0),
        (["goal 1", "goal 2"], [], 0),
        (["light blue"], ["dark blue"], 1),  # both are blue
        (["navy blue"], ["blue"], 1),
    ],
)
def test_options_count_by_likeness_and_by_plain_colour(wanted: list[str], chosen: list[str], num_met: int) -> None:
    assert count_options(wanted, chosen) == num_met


@pytest.mark.parametrize(
    ("value", "color"),
    [("", ""), ("black forest", "black"), ("violet lavender", "lavender"), ("steelivy fuchsia", "fuchsia"),
     ("123alabaster", "alabaster"), ("webshop", "webshop")],
)  # fmt: skip
def test_colours_are_the_first_of_the_list_that_is_in_the_value(value: str, color: str) -> None:
    assert normalised_color(value) == color


@pytest.mark.parametrize(
    ("path", "matches"),
    [("b › c › a", True), ("d › e › f", False), ("a › d › b", True), ("a › a › b", True), ("a › a › d", False)],
)
def test_two_shared_parts_of_the_path_are_a_match(path: str, matches: bool) -> None:
    assert match_type(GOAL, replace(PRODUCT, product_category=path)).category_match is matches


@pytest.mark.parametrize(
    ("wanted", "bought", "with_tagger"),
    [
        (SNEAKERS, "PEAK High Top Mens Basketball Shoes Lou Williams Streetball Master Breathable Non Slip Outdoor "
         "Sneakers", 0.333),
        (SOUNDBAR_CORD + " Home Theater System Subwoofer", THEATER_CORD, 0.3),
        (SOUNDBAR_CORD, THEATER_CORD, 0.15),
        ("Rusticware 921ORB Kitchen and Bath Cabinet Knob", "Minkissy 2pcs Stainless Steel Eyebrow Tweezers Blackhead "
         "Acne Remover Portable Makeup Tweezers (Silver)", 0.0),
    ],
)  # fmt: skip
def test_names_lead_to_the_same_type_as_with_a_tagger(wanted: str, bought: str, with_tagger: float) -> None:
    """The scores are those that WebShop's tests have with spaCy; ours differ by a word or two."""
    ours = match_type(replace(GOAL, name=wanted), replace(PRODUCT, name=bought, query="", product_category=""))
    spacys = TypeMatch(query_match=False, category_match=False, title_score=with_tagger)
    assert ours.r_type == spacys.r_type
    assert ours.title_score == pytest.approx(with_tagger, abs=0.12)


# --------------------------------------------------------------------------------------------------- edges of our own


@pytest.mark.parametrize(
    ("first", "second", "score"),
    [
        ("essential oils", "essential oil", 96),  # 2 * 13 / 27
        ("ab", "cd", 0),
        ("a b c", "c b a", 100),
        ("new york mets", "mets", 100),
        ("easy clean", "easily cleaned", 83),  # 2 * 10 / 24
        ("!?", "mets", 0),
        ("abcd", "acbd", 75),
    ],
)
def test_likeness_by_hand(first: str, second: str, score: int) -> None:
    assert token_set_ratio(first, second) == token_set_ratio(second, first) == score


@pytest.mark.parametrize(
    ("query", "category", "title_score", "r_type"),
    [
        (True, True, 0.0, 0.0),
        (True, True, 0.099, 0.1),
        (True, False, 0.1, 1.0),
        (False, True, 0.1, 1.0),
        (False, False, 0.1, 0.5),
        (False, False, 0.2, 0.5),
        (False, False, 0.21, 1.0),
    ],
)
def test_types_at_their_bounds(query: bool, category: bool, title_score: float, r_type: float) -> None:
    assert TypeMatch(query_match=query, category_match=category, title_score=title_score).r_type == r_type


def test_a_name_without_nouns_scores_a_fifth() -> None:
    assert match_type(replace(GOAL, name="of the"), PRODUCT).title_score == 0.2


def test_a_price_at_the_limit_is_met() -> None:
    assert score_purchase(GOAL, replace(PRODUCT, price=40.0), []).r_price
    assert not score_purchase(GOAL, replace(PRODUCT, price=40.01), []).r_price


@pytest.mark.parametrize("r_type", [1.0, 0.5, 0.1, 0.0])
@pytest.mark.parametrize("num_met", [(0, 0, False), (1, 1, True), (3, 2, True), (2, 0, True)])
def test_parts_sum_to_the_reward(r_type: float, num_met: tuple[int, int, bool]) -> None:
    title_score = {1.0: 0.5, 0.5: 0.15, 0.1: 0.05, 0.0: 0.0}[r_type]
    score = Score(
        type_match=TypeMatch(query_match=False, category_match=False, title_score=title_score),
        num_attributes=3,
        num_attributes_met=num_met[0],
        num_options=2,
        num_options_met=num_met[1],
        r_price=num_met[2],
    )
    assert score.reward == pytest.approx(r_type * sum(num_met) / 6)
    assert sum(part.value for part in score.parts()) == pytest.approx(score.reward)


# ------------------------------------------------------------------------------------------------- recorded sessions


def recorded_purchases() -> list[tuple[str, dict[str, Any]]]:
    return [(name, pages[-1]) for name, pages in sessions().items()]


@needs_webshop_data
def test_recorded_rewards_follow_from_what_was_recorded() -> None:
    """All but the attributes, for which the bought products' pages would be needed, and their names' nouns."""
    purchases = recorded_purchases()
    assert len(purchases) == 5
    for name, done in purchases:
        goal, content, info = done["goal"], done["content"], done["reward_info"]
        num_attributes, options = len(goal["attributes"]), goal["goal_options"]
        score = Score(
            type_match=TypeMatch(**{key: info[key] for key in ("query_match", "category_match", "title_score")}),
            num_attributes=num_attributes,
            num_attributes_met=round(info["r_att"] * num_attributes),
            num_options=len(options),
            num_options_met=count_options(options, content["options"].values()),
            r_price=content["price"] <= goal["price_upper"],
        )
        assert score.type_match.r_type == info["r_type"], name
        assert score.r_option == info.get("r_option"), name
        assert score.r_price == info["r_price"], name
        assert score.reward == done["reward"], name


@needs_webshop_data
def test_nouns_are_about_as_many_as_the_tagger_found() -> None:
    """A recorded title score is a fraction of the number of nouns: exactly so here for three names of five."""
    exact = 0
    for name, done in recorded_purchases():
        score = done["reward_info"]["title_score"]
        count = len(nouns(done["goal"]["name"]))
        assert any(abs(score * near - round(score * near)) < 1e-9 for near in range(count - 2, count + 1)), name
        exact += abs(score * count - round(score * count)) < 1e-9
    assert exact == 3


def test_the_threshold_of_likeness_is_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward, "token_set_ratio", lambda first, second: 85)
    assert count_options(["a"], ["a"]) == 0
    monkeypatch.setattr(reward, "token_set_ratio", lambda first, second: 86)
    assert count_options(["a"], ["b"]) == 1
