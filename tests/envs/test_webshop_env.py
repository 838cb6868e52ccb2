"""The environment around the shop: tools and text, what may be typed, snapshots, tasks, arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agentgym.check import check_env
from agentgym.envs.webshop.env import WebShopEnv
from agentgym.errors import ResetNeededError, UsageError
from agentgym.registry import make
from agentgym.types import Message, Task, ToolCall


def shop(**kwargs: Any) -> WebShopEnv:
    env = make("agentgym/WebShop-v0", **{"num_products": 200, **kwargs})
    assert isinstance(env, WebShopEnv)
    return env


def play(env: WebShopEnv, task: int, split: str = "train") -> tuple[float, list[str]]:
    """One episode of the gold policy: what it returned, and what it did."""
    env.reset(options={"task": task, "split": split})
    actions, total = [], 0.0
    while True:
        action = env.oracle()
        actions.append(action.text)
        _, reward, terminated, truncated, info = env.step(action)
        assert info["is_valid"], actions
        total += reward
        if terminated or truncated:
            assert info["success"], actions
            return total, actions


# ----------------------------------------------------------------------------------------------------- the gold policy


@pytest.mark.parametrize("interface", ["tools", "text"])
def test_the_gold_policy_gets_everything(interface: str) -> None:
    env = shop(num_products=1_000, interface=interface)
    for index in range(250):
        assert play(env, index, "test")[0] == pytest.approx(1.0, abs=1e-12)


def test_the_gold_policy_goes_on_from_anywhere() -> None:
    env = shop(max_turns=60)
    rng = np.random.default_rng(0)
    for index in range(40):
        env.reset(options={"task": index})
        for _ in range(12):
            actions = [action for action in env.admissible_actions() if action != "click[buy now]"]
            env.step(actions[int(rng.integers(len(actions)))])
        while True:
            _, reward, terminated, _, info = env.step(env.oracle())
            assert info["is_valid"]
            if terminated:
                assert reward == pytest.approx(1.0)
                break


def test_a_purchase_gives_its_parts_and_its_breakdown() -> None:
    env = shop()
    env.reset(options={"task": 3})
    env.step("search[shirt]")
    other = next(name for name in env.visit.clickables() if name.startswith("b0"))
    env.step(f"click[{other}]")
    with pytest.raises(ResetNeededError, match="nothing was bought"):
        _ = env.score
    _, reward, terminated, _, info = env.step("click[buy now]")
    assert terminated
    assert [part.name for part in info["reward_parts"]] == ["attributes", "options", "price", "type"]
    assert reward == pytest.approx(env.score.reward)
    assert env.score.reward < 1.0 and not info["success"]


# --------------------------------------------------------------------------------------------------- tools and text


def test_tools_are_search_and_click() -> None:
    env = shop()
    assert [(spec.name, list(spec.parameters["properties"])) for spec in env.tools] == [
        ("search", ["keywords"]),
        ("click", ["element"]),
    ]
    assert shop(interface="text").tools == ()


@pytest.mark.parametrize("seed", range(4))
def test_tools_and_text_lead_to_the_same_pages(seed: int) -> None:
    tools, text = shop(), shop(interface="text")
    rng = np.random.default_rng(seed)
    assert tools.reset(options={"task": seed})[0] == text.reset(options={"task": seed})[0]
    for _ in range(15):
        assert tools.admissible_actions() == text.admissible_actions()
        actions = tools.admissible_actions()
        action = actions[int(rng.integers(len(actions)))]
        called, written = tools.step(action), text.step(action)
        assert [message.text for message in called[0]] == [message.text for message in written[0]]
        assert called[1:] == written[1:]
        assert tools.state_key() == text.state_key()
        if called[2] or called[3]:
            break


@pytest.mark.parametrize("interface", ["tools", "text"])
def test_what_the_page_offers_is_possible_and_nothing_else(interface: str) -> None:
    env = shop(interface=interface, max_turns=500)
    rng = np.random.default_rng(1)
    env.reset(options={"task": 5})
    for _ in range(25):
        before = env.snapshot()
        actions = env.admissible_actions()
        for action in (actions[int(rng.integers(len(actions)))], actions[-1]):
            assert env.step(action)[4]["is_valid"], action
            env.restore(before)
        observation, _, _, _, info = env.step("click[no such thing]")
        assert not info["is_valid"]
        if interface == "text":
            assert observation[0].text == env.visit.text()
        else:
            assert observation[0].result is not None and observation[0].result.error_type == "unknown_element"
        others = [action for action in actions if action != "click[buy now]"]
        env.step(others[int(rng.integers(len(others)))])


def test_a_search_is_possible_on_every_page_as_in_webshop() -> None:
    env = shop()
    env.reset(options={"task": 0})
    env.step("search[desk]")
    env.step(env.admissible_actions()[-1])
    assert "[SEP] Buy Now" in env.visit.text()
    assert env.step("search[sofa]")[4]["is_valid"]
    assert "[SEP] Page 1 (Total results: " in env.visit.text()


def test_options_are_forgotten_when_a_product_is_left_but_not_on_its_sub_pages() -> None:
    env = shop()
    env.reset(options={"task": 0})
    while not env.visit.view.options:
        env.step(env.oracle())
    chosen = env.visit.view.options
    for action in ("click[Features]", "click[< Prev]"):
        env.step(action)
        assert env.visit.view.options == chosen
    env.step("click[< prev]")
    assert (env.visit.view.page, env.visit.view.options) == ("results", ())


@pytest.mark.parametrize(
    ("call", "error_type", "words"),
    [
        (ToolCall("serch", {"keywords": "a"}), "unknown_tool", "Did you mean search?"),
        (ToolCall("search", {"keywords": "  "}), "invalid_arguments", "keywords are empty"),
        (ToolCall("search", {}), "invalid_arguments", "Usage: search(keywords: string)"),
        (ToolCall("click", {"element": "Buy Now"}), "unknown_element", "nothing, only search is possible"),
    ],
)
def test_bad_calls_give_typed_errors(call: ToolCall, error_type: str, words: str) -> None:
    env = shop()
    env.reset(options={"task": 0})
    observation, reward, _, _, info = env.step(Message("assistant", "", (call,)))
    assert observation[0].result is not None and observation[0].result.error_type == error_type
    assert words in observation[0].text
    assert (reward, info["is_valid"]) == (0.0, False)


@pytest.mark.parametrize("text", ["", "buy it", "search[]", "look[around]", "click[ ]"])
def test_text_that_is_no_action_is_refused_with_the_grammar(text: str) -> None:
    env = shop(interface="text")
    env.reset(options={"task": 0})
    observation, _, _, _, info = env.step(Message("assistant", text))
    assert observation[0].text == "Write search[keywords] or click[element] on the last line."
    assert not info["is_valid"]


def test_a_person_may_type_actions_or_calls() -> None:
    call = ToolCall("search", {"keywords": "red shoes"}, "0")
    assert shop().parse_action("search[Red Shoes]") == Message("assistant", "search: red shoes", (call,))
    assert shop().parse_action("search: red shoes").calls == (call,)
    assert shop(interface="text").parse_action("search[Red Shoes]").text == "search[red shoes]"


# ----------------------------------------------------------------------------------------------- states and tasks


def test_keys_forget_how_a_state_was_reached() -> None:
    env = shop()
    env.reset(options={"task": 0})
    start = env.state_key()
    env.step("search[easy clean desk]")
    results = env.state_key()
    env.step("search[the desk: easy, clean!]")
    assert env.state_key() == results != start
    first = env.admissible_actions()[2]
    env.step(first)
    item = env.state_key()
    env.step("click[description]")
    assert env.state_key() != item
    env.step("click[< prev]")
    assert env.state_key() == item
    env.step("click[back to search]")
    assert env.state_key() == start


def test_keys_tell_goals_and_choices_apart() -> None:
    env = shop()
    env.reset(options={"task": 0})
    while not env.visit.view.options:
        before = env.state_key()
        env.step(env.oracle())
    assert env.state_key() != before
    key = env.state_key()
    env.reset(options={"task": 1})
    assert env.state_key() != key


def test_splits_share_no_product_and_no_near_duplicate() -> None:
    env = shop()
    families: dict[int, str] = {}
    for split in ("train", "valid", "test"):
        for index in range(150):
            env.reset(options={"task": index, "split": split})
            catalogue = env.visit.catalogue
            family = catalogue.families[catalogue.place_of(env.visit.goal.asin)]
            assert families.setdefault(family, split) == split


def test_a_task_is_the_same_in_every_environment() -> None:
    task = shop().tasks("valid")[7]
    assert task.data == {"num_products": 200, "catalogue_seed": 0}
    first, _ = shop().reset(options={"task": task})
    assert shop(num_products=300, catalogue_seed=9).reset(options={"task": task})[0] == first


def test_environments_of_a_process_share_one_catalogue() -> None:
    one, other = shop(), shop()
    one.reset(seed=0)
    other.reset(seed=5)
    assert one.visit.catalogue is other.visit.catalogue


def test_an_episode_is_truncated_after_its_turns() -> None:
    env = shop(max_turns=2)
    env.reset(options={"task": 0})
    assert env.step("search[desk]")[2:4] == (False, False)
    assert env.step("search[desk]")[2:4] == (False, True)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"num_products": 99}, "num_products is a whole number from 100 to 100000, got 99"),
        ({"num_products": 2.0}, "got 2.0"),
        ({"num_products": True}, "got True"),
        ({"interface": "speech"}, "interface must be one of tools, text, got 'speech'"),
        ({"max_turns": 0}, "max_turns must be at least 1"),
        ({"data_dir": "/no/such/folder"}, "data folder '/no/such/folder' does not exist"),
    ],
)
def test_bad_arguments_are_refused_with_what_is_allowed(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        shop(**kwargs)
    assert words in str(caught.value)


def test_bad_tasks_are_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'num_products'"):
        shop().reset(options={"task": Task(id="x", split="train", seed=0, data={"num_product": 200})})
    with pytest.raises(UsageError, match="known: test, train, valid"):
        shop().reset(options={"task": Task(id="x", split="tests", seed=0)})
    with pytest.raises(ResetNeededError):
        shop().state_key()


def test_the_conformance_kit_passes_in_text_too() -> None:
    report = check_env(lambda: shop(interface="text"), num_episodes=1)
    assert report.passed, str(report)
