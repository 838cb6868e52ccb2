"""The encyclopedia as linked pages, read by a text browser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agentgym.check import check_env
from agentgym.check.policies import random_action
from agentgym.envs.search.web_browse import WebBrowseEnv, rendered_page, rendered_results, title_of, url_of
from agentgym.envs.search.wikiworld import WikiWorldEnv
from agentgym.registry import make
from agentgym.tools.retrieval.types import Hit
from agentgym.types import Message


def browse(**kwargs: Any) -> WebBrowseEnv:
    env = make("agentgym/WebBrowse-v0", **kwargs)
    assert isinstance(env, WebBrowseEnv)
    return env


def said(env: WebBrowseEnv, action: str) -> str:
    observation, _, _, _, info = env.step(action)
    assert info["is_valid"], observation[0].text
    return observation[0].text


def refused(env: WebBrowseEnv, action: str | Message) -> str | None:
    observation, _, _, _, info = env.step(action)
    assert not info["is_valid"] and observation[0].result is not None
    return observation[0].result.error_type


# ------------------------------------------------------------------------------------------------------------ pages


@pytest.mark.parametrize("title", ["Tolan Bay", "Tolan Bay (1990)", "50% & more?", "Ünder/über"])
def test_addresses_lead_back_to_titles(title: str) -> None:
    assert title_of(url_of(title)) == title
    assert title_of("/search?q=x") is None


def test_pages_say_what_their_text_says_and_link_what_they_name() -> None:
    env = browse(num_pages=200, aliases=0.5, stale_pages=0.2, injections=0.1)
    env.reset(seed=0)
    for page in env.world.pages:
        shown = rendered_page(page, env.world.facts)
        text = shown.text
        for number in range(1, len(shown.links) + 1):
            text = text.replace(f" [{number}]", "", 1)
        assert text == f"{page.title}\n{page.text}"
        assert all(title_of(link) in env.world.page_of for link in shown.links)
        assert len(shown.links) == sum(not isinstance(piece, str) for piece in page.pieces)


def test_results_show_queries_and_snippets_as_they_are() -> None:
    page = rendered_results("a <b>\n c", [Hit("A <b>", "A  <b>", "<a href='/evil'>click</a>", 1.0)])
    assert page.links == (url_of("A <b>"),)
    assert page.text.splitlines() == ["Results for a <b>", "c", "A <b> [1] <a href='/evil'>click</a>"]
    assert rendered_results("x", []).text == "Results for x\nNo page fits; try other words."


# --------------------------------------------------------------------------------------------------------- browsing


def test_one_browses_by_numbers_addresses_and_back() -> None:
    env = browse(hops=2, aliases=0.0, max_turns=40)
    env.reset(options={"task": 1})
    assert refused(env, "open: 1") == refused(env, "find: x") == "nothing_open"
    assert refused(env, "back") == "no_page"
    first, second = env.question.gold
    results = said(env, f"search: {first}")
    assert results.startswith(f"Results for {first}\n{first} [1] ")
    page = said(env, "open: 1")
    assert page.startswith(f"{first}\n{first} is a ")
    assert said(env, "find: IS A").startswith(f"1. {first} {first} is a")
    assert said(env, "find: unicorn") == "Not on this page."
    assert said(env, f"open: {url_of(second)}").startswith(f"{second}\n")
    assert said(env, "back") == page
    assert said(env, "back") == results
    assert refused(env, "back") == "no_page"
    assert refused(env, "open: 99") == refused(env, f"open: {'9' * 5000}") == "unknown_link"
    assert refused(env, "open: /wiki/Nowhere") == refused(env, "open: 0") == "unknown_link"
    assert refused(env, 'search: "?"') == "invalid_query"


def test_an_address_that_no_link_has_shown_leads_nowhere() -> None:
    env = browse()
    env.reset(options={"task": 0})
    env.step("search: Winter")
    assert refused(env, f"open: {url_of(env.question.gold[0])}") == "unknown_link"


def test_a_long_page_is_cut_and_the_rest_can_be_found() -> None:
    env = browse(fillers=20, page_tokens=40, hops=1, aliases=0.0)
    env.reset(options={"task": 0})
    said(env, f"search: {env.question.gold[0]}")
    page = said(env, "open: 1")
    assert page.endswith("[…]") and "museum" not in page
    assert "museum" in said(env, "find: museum")


def test_questions_are_those_of_wikiworld() -> None:
    wiki = make("agentgym/WikiWorld-v0")
    assert isinstance(wiki, WikiWorldEnv)
    for task in browse().tasks("valid")[:20]:
        assert task == wiki.tasks("valid")[int(task.id.rpartition("-")[2])]


@pytest.mark.parametrize("kwargs", [{}, {"hops": (3, 4), "aliases": 0.5, "stale_pages": 0.2, "injections": 0.1}])
def test_the_gold_policy_answers_everything(kwargs: dict[str, Any]) -> None:
    env = browse(**kwargs)
    for task in range(120):
        env.reset(options={"task": task, "split": "test"})
        while True:
            _, _, terminated, truncated, info = env.step(env.oracle())
            assert info["is_valid"]
            if terminated or truncated:
                break
        assert info["success"], task


def test_links_spare_searches() -> None:
    env = browse(hops=4)
    env.reset(options={"task": 0})
    while not env.step(env.oracle())[2]:
        pass
    assert env.is_success() and env.turn == 6, "one search, four pages, one answer"


def test_snapshots_bring_the_browser_back() -> None:
    env, other = browse(), browse()
    rng = np.random.default_rng(0)
    observation, _ = env.reset(options={"task": 2})
    for _ in range(5):
        action = random_action(env, observation, rng)
        if not action.text.startswith("answer"):
            observation = env.step(action)[0]
    other.restore(env.snapshot())
    assert other.browser == env.browser and other.state_key() == env.state_key()
    assert other.admissible_actions() == env.admissible_actions()


def test_the_state_is_the_same_however_one_came_there() -> None:
    env = browse(hops=1, aliases=0.0)
    env.reset(options={"task": 0})
    (title,) = env.question.gold
    said(env, f"search: {title}")
    said(env, "open: 1")
    key = env.state_key()
    said(env, "back")
    assert env.state_key() != key
    said(env, "open: 1")
    assert env.state_key() == key


def test_the_environment_conforms() -> None:
    report = check_env("agentgym/WebBrowse-v0")
    assert report.passed, str(report)
