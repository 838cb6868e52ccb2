"""The shop in a browser: the text shop's goals and reward, its pages, and orders that the shop alone tells of."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from typing import Any

import pytest
from testkit.gui_pages import NEEDS_CHROMIUM

from agentgym.check import check_env
from agentgym.envs.gui.pool import close_browsers
from agentgym.envs.gui.shop.env import WebShopGUIEnv, order_value
from agentgym.envs.gui.shop.site import Line, Listing, ShopSite, num_pages
from agentgym.envs.webshop.env import WebShopEnv
from agentgym.envs.webshop.oracle import best_query
from agentgym.errors import EnvError, ResetNeededError, UnknownNameError
from agentgym.registry import make

pytestmark = NEEDS_CHROMIUM


@pytest.fixture(scope="module")
def env() -> Iterator[WebShopGUIEnv]:
    made = make("agentgym/WebShopGUI-v0", num_products=200)
    assert isinstance(made, WebShopGUIEnv)
    yield made
    made.close()
    close_browsers()


def play(env: WebShopGUIEnv, seed: int, split: str = "train") -> tuple[float, list[str]]:
    """The gold policy's episode: its reward, and the key of every state."""
    env.reset(seed=seed, options={"split": split})
    keys, reward, is_over = [env.state_key()], 0.0, False
    while not is_over:
        _, reward, terminated, truncated, _ = env.step(env.oracle())
        keys.append(env.state_key())
        is_over = terminated or truncated
    return reward, keys


def target_page(env: WebShopGUIEnv, seed: int) -> str:
    """Begin an episode on the page of the product that is wanted; the path."""
    env.reset(seed=seed)
    path = f"/product/{env.goal.asin}"
    env.step(f"goto: {path}")
    return path


# ------------------------------------------------------------------------------------------------------- episodes


def test_the_gold_policy_earns_everything(env: WebShopGUIEnv) -> None:
    assert [play(env, seed)[0] for seed in range(6)] == [1.0] * 6
    assert play(env, 0, "test")[0] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("stock", ["mall", "kiosk"])
def test_the_gold_policy_earns_everything_on_goals_of_every_kind(stock: Any) -> None:
    """One of the first fifty goals for each department, number of options and page of the search with the product."""
    text = WebShopEnv(num_products=500, stock=stock)
    seeds: dict[tuple[str, int, int], int] = {}
    for seed in range(50):
        text.reset(seed=seed)
        catalogue, goal = text.visit.catalogue, text.visit.goal
        place = catalogue.place_of(goal.asin)
        found = Listing(" ".join(best_query(catalogue, goal).split())).places(catalogue)
        page = found.index(place) // catalogue.results_per_page
        seeds.setdefault((catalogue.products[place].category, len(goal.options), page), seed)
    assert len(seeds) > 10
    shop = WebShopGUIEnv(num_products=500, stock=stock)
    assert [play(shop, seed)[0] for seed in seeds.values()] == [1.0] * len(seeds)
    shop.close()


def test_goals_are_those_of_the_text_shop(env: WebShopGUIEnv) -> None:
    text = WebShopEnv(num_products=200)
    for split in ("train", "test"):
        env.reset(seed=5, options={"split": split})
        text.reset(seed=5, options={"split": split})
        assert (env.task, env.goal) == (text.task, text.visit.goal)
        assert env.catalogue is text.visit.catalogue


def test_the_same_seed_gives_the_same_states(env: WebShopGUIEnv) -> None:
    first, second = play(env, 4)[1], play(env, 4)[1]
    assert first == second
    assert len(set(first)) == len(first)


def test_a_snapshot_is_returned_to_by_replay(env: WebShopGUIEnv) -> None:
    env.reset(seed=2)
    for _ in range(4):
        env.step(env.oracle())
    snapshot, page = env.snapshot(), env.page
    env.step("goto: /")
    env.restore(snapshot)
    assert env.page == page
    assert env.oracle().calls


def test_the_gold_policy_finds_back_from_anywhere(env: WebShopGUIEnv) -> None:
    env.reset(seed=1)
    other = next(product for product in env.catalogue.products if product.asin != env.goal.asin and not product.options)
    env.step(f"goto: /product/{other.asin}")
    env.step("click: add-to-cart")
    assert [line.asin for line in env.cart] == [other.asin]
    env.step("goto: /search?category=grocery")
    info: dict[str, Any] = {}
    while "success" not in info:
        info = env.step(env.oracle())[4]
    assert info["success"]
    assert [line.asin for line in env.order] == [env.goal.asin]


# --------------------------------------------------------------------------------------------------------- pages


def test_a_search_is_filtered_and_turned_over(env: WebShopGUIEnv) -> None:
    env.reset(seed=0)
    env.step("goto: /search?q=home")
    every = Listing("home").places(env.catalogue)
    assert env.page.find("heading").name == f"{len(every)} products for “home”"
    env.step("click: next-page")
    assert env.page.url == "http://shop.localhost/search?q=home&page=2"
    assert f"Page 2 of {num_pages(env.catalogue, len(every))}" in env.page.text
    env.step('select: department; ["Garden"]')
    env.step("fill: price-to; $40")
    env.step("click: apply-filters")
    kept = [env.catalogue.products[place] for place in Listing.of_url(env.page.url).places(env.catalogue)]
    assert 0 < len(kept) < len(every)
    assert all(product.category == "garden" and product.prices[0] <= 40 for product in kept)
    shown = env.page.text
    assert all(product.asin in shown for product in kept[:10])
    assert env.page.find("combobox", "Department").states["value"] == "Garden"


def test_options_must_be_chosen(env: WebShopGUIEnv) -> None:
    seed = next(seed for seed in range(9) if (env.reset(seed=seed), env.goal.options)[1])
    target_page(env, seed)
    env.step("click: add-to-cart")
    assert "Please choose: " in env.page.text
    assert env.cart == ()


def test_lines_are_removed_from_the_cart(env: WebShopGUIEnv) -> None:
    path = target_page(env, 0)
    for _ in range(2):
        env.step(f"goto: {path}")
        while env.page.url.endswith(path):
            env.step(_choice(env))
    assert [line.number for line in env.cart] == [1, 2]
    assert env.page.find("link", "Cart (2)")
    env.step(f"click: {env.page.find('button', 'Remove').id}")
    assert [line.number for line in env.cart] == [2]


def _choice(env: WebShopGUIEnv) -> str:
    """The next step on a product's page, whatever is in the cart."""
    for node in env.page.find_all("combobox"):
        if node.states["value"] == "Choose":
            return f'select: {node.id}; ["{node.states["options"][1]}"]'
    return "click: add-to-cart"


# --------------------------------------------------------------------------------------------------- the outcome


def test_what_was_not_asked_for_costs(env: WebShopGUIEnv) -> None:
    env.reset(seed=0)
    goal, catalogue = env.goal, env.catalogue
    product = catalogue.products[catalogue.place_of(goal.asin)]
    options = {
        name: next((v for v in values if v in goal.options), values[0]) for name, values in product.options.items()
    }
    right = Line(1, goal.asin, options)
    other = next(p for p in catalogue.products if p.query != product.query)
    wrong = Line(2, other.asin, {name: values[0] for name, values in other.options.items()})
    assert order_value(goal, catalogue, [right]) == 1.0
    assert order_value(goal, catalogue, [right, wrong]) == 0.5
    assert order_value(goal, catalogue, [wrong]) < 0.5


def test_nothing_ordered_is_worth_nothing(env: WebShopGUIEnv) -> None:
    env.reset(seed=0)
    assert env.step("done: I bought it")[1:3] == (0.0, True)
    env.reset(seed=0)
    env.step("goto: /thanks")  # the page of thanks alone is no order
    assert "Thank you" in env.page.text
    assert env.order == ()


def test_an_order_is_of_its_own_episode(env: WebShopGUIEnv) -> None:
    beside = WebShopGUIEnv(num_products=200)
    beside.reset(seed=7)
    assert play(env, 3)[0] == 1.0
    assert (len(env.order), beside.order, beside.cart) == (1, (), ())
    beside.step("goto: /enter")
    assert "Not Found" in beside.page.text
    beside.close()
    with pytest.raises(ResetNeededError):
        WebShopGUIEnv(num_products=200).cart  # noqa: B018


def test_many_customers_at_a_time() -> None:
    async def shop(seed: int) -> float:
        env = WebShopGUIEnv(num_products=200, stock="kiosk")
        await env.areset(seed=seed)
        reward, is_over = 0.0, False
        while not is_over:
            _, reward, terminated, truncated, _ = await env.astep(env.oracle())
            is_over = terminated or truncated
        await env.aclose()
        return float(reward)

    async def shop_all() -> list[float]:
        return await asyncio.gather(*(shop(seed) for seed in range(6)))

    assert asyncio.run(shop_all()) == [1.0] * 6


def test_a_shop_that_fails_is_an_env_error(env: WebShopGUIEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    env.reset(seed=0)

    def fail(catalogue: object, num_found: int) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr("agentgym.envs.gui.shop.site.num_pages", fail)
    with pytest.raises(EnvError, match=r"site shop\.localhost, GET /search: OSError: .*disk full"):
        env.step("goto: /search?q=mug")


def test_lines_are_numbered_and_ordered_once(env: WebShopGUIEnv) -> None:
    env.reset(seed=0)
    shop = ShopSite(env.catalogue)
    shop.add("B01", {"size": "l", "color": "red"})
    shop.add("B02", {})
    shop.remove(1)
    shop.add("B03", {})
    assert [(line.number, line.asin) for line in shop.cart] == [(2, "B02"), (3, "B03")]
    shop.place_order()
    shop.add("B04", {})
    shop.place_order()
    assert [line.asin for line in shop.order] == ["B02", "B03"]
    assert [line.asin for line in shop.cart] == ["B04"]


def test_unknown_stock_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="kiosk"):
        WebShopGUIEnv(stock="market")  # type: ignore[arg-type]


@pytest.mark.slow
def test_it_conforms() -> None:
    report = check_env(lambda: WebShopGUIEnv(num_products=200, max_turns=8), num_episodes=1)
    assert [(check.name, check.detail) for check in report.failures] == []
