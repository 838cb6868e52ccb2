"""Situations that users of other projects reported of worlds, rebuilt here; see ``docs/field-log.md``."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import pytest

from agentgym.env.env import Env
from agentgym.registry import make
from agentgym.types import Message, ToolCall

SHARED = Path(os.environ.get("AGENTGYM_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
HAS_ALFWORLD = importlib.util.find_spec("alfworld") is not None and (SHARED / "alfworld").is_dir()
HOUSES = [
    "agentgym/Household-v0",
    pytest.param(
        "agentgym/ALFWorld-v0", marks=pytest.mark.skipif(not HAS_ALFWORLD, reason="needs the extra alfworld and games")
    ),
]


def house(env_id: str, **kwargs: Any) -> Env:
    if "ALFWorld" in env_id:
        kwargs["data_dir"] = SHARED / "alfworld"
    return make(env_id, interface="text", **{"max_turns": 200, **kwargs})


def say(env: Env, line: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
    observation, reward, terminated, truncated, info = env.step(Message("assistant", line))
    return observation[0].text, reward, terminated, truncated, dict(info)


# ------------------------------------------------------------------------------------------------- houses


@pytest.mark.parametrize("env_id", HOUSES)
def test_the_end_of_the_turns_is_no_success(env_id: str) -> None:
    env = house(env_id, max_turns=2)
    env.reset(options={"task": 0, "split": "train"})
    say(env, "look")
    _, reward, terminated, truncated, info = say(env, "look")
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, False)
    env.close()


def test_every_place_that_is_listed_can_be_reached() -> None:
    env = house("agentgym/Household-v0")
    for number in range(6):
        opening = env.reset(options={"task": number, "split": "train"})[0][0].text
        places = re.findall(r"\ban? ([a-z]+ \d+)", opening.partition("you see")[2])
        assert len(places) > 5
        for place in [*places, *reversed(places)]:
            if f"go to {place}" in env.admissible_actions():
                text, *_, info = say(env, f"go to {place}")
                assert info["is_valid"] and place in text
            else:
                assert "Nothing happens" in say(env, f"go to {place}")[0], "the agent stands there already"
    env.close()


@pytest.mark.parametrize("env_id", HOUSES)
@pytest.mark.parametrize("words", ["put {} in/on {}", "put {} in {}", "put {} on {}", "move {} to {}"])
def test_put_and_move_are_one_command(env_id: str, words: str) -> None:
    env = house(env_id)
    placed = 0
    for number in range(3):
        env.reset(options={"task": number, "split": "train"})
        while not env.episode.is_over:
            line = env.oracle().text
            found = re.fullmatch(r"(?:put|move) (.+?) (?:in/on|to) (.+)", line)
            placed += found is not None
            *_, info = say(env, words.format(*found.groups()) if found else line)
            assert info["is_valid"]
        assert info["success"]
    assert placed
    env.close()


@pytest.mark.parametrize("env_id", HOUSES)
def test_a_game_that_is_won_wins_no_other(env_id: str) -> None:
    won, other = house(env_id), house(env_id)
    for env in (won, other):
        env.reset(options={"task": 0, "split": "train"})
    while not won.episode.is_over:
        *_, info = say(won, won.oracle().text)
        text, reward, terminated, _, _ = say(other, "look")
        assert (reward, terminated) == (0.0, False) and "completed" not in text
    assert info["success"]
    won.close()
    other.close()


# -------------------------------------------------------------------------------------------------- shops


@pytest.fixture
def shop() -> Env:
    env = make("agentgym/WebShop-v0", interface="text", max_turns=90)
    env.reset(seed=3)
    return env


@pytest.mark.parametrize("query", ["leather", "wearable technology with genuine leather, price < 40 dollars", "xqzzy"])
def test_all_results_of_a_search_are_on_its_pages(shop: Env, query: str) -> None:
    text, *_, info = say(shop, f"search[{query}]")
    found = re.search(r"Total results: (\d+)", text)
    assert found is not None and info["is_valid"]
    products: list[str] = []
    for _ in range(int(found[1]) // 10 + 2):
        products += [action for action in shop.admissible_actions() if re.fullmatch(r"click\[b0\w{8}\]", action)]
        say(shop, "click[Next >]")
    assert len(products) == len(set(products)) == int(found[1])
    text, *_, info = say(shop, "click[next >]")
    assert info["is_valid"] and f"Total results: {found[1]}" in text, "a page after the last is empty, as in WebShop"


@pytest.mark.parametrize("line", ["think[red shoes are cheap]", "reset[]", "buy", "click[buy now]", "search[]"])
def test_what_is_no_action_of_the_shop_changes_nothing(shop: Env, line: str) -> None:
    before = shop.state_key()
    text, reward, terminated, _, info = say(shop, line)
    assert (reward, terminated, info["is_valid"]) == (0.0, False, False) and text
    assert shop.state_key() == before


# --------------------------------------------------------------------------------------- puzzles and calls


def scored(dataset: str, answer: Any, seed: int = 0) -> tuple[float, bool]:
    """Return the outcome of an answer, or of a function of the question, and whether it was one."""
    pytest.importorskip("reasoning_gym", reason="needs the package reasoning-gym (the extra reasoning-gym)")
    env: Any = make("agentgym/ReasoningGym-v0", datasets=dataset)
    question = env.reset(seed=seed)[0][0].text
    *_, info = env.step(env.message_of(answer(question) if callable(answer) else answer))
    env.close()
    return sum(part.value for part in info["reward_parts"]), bool(info["is_valid"])


@pytest.mark.parametrize("seed", range(6))
def test_numbers_are_sorted_as_they_were_given(seed: int) -> None:
    def ordered(question: str) -> str:
        first = question.partition("\n")[0]
        numbers = first.partition(":")[2].strip().split(", ")
        return str(sorted(numbers, key=float, reverse="descending" in first))

    assert scored("number_sorting", ordered, seed) == (1.0, True)


@pytest.mark.parametrize("answer", [lambda said: re.findall(r"\d+", said)[0], "300 + 306", "606"])
def test_an_expression_of_other_numbers_is_wrong(answer: Any) -> None:
    assert scored("countdown", answer)[0] < 1.0


@pytest.mark.parametrize("answer", ["[1]", "null", '[["a"]]', '[{"Agent[0.5, 0.5]": 3}]', "[{", "{}"])
def test_an_answer_that_breaks_the_verifier_is_a_wrong_answer(answer: str) -> None:
    assert scored("boxnet", answer)[0] < 0.1


@pytest.mark.parametrize("form", ["{}/{}", " {}/{} ", "\\frac{{{}}}{{{}}}", "${}/{}$"])
def test_a_fraction_counts_in_each_form_that_is_asked_for(form: str) -> None:
    from math import gcd

    def simplified(said: str) -> str:
        above, below = map(int, re.findall(r"\d+", said.partition("\n")[0])[:2])
        return form.format(above // gcd(above, below), below // gcd(above, below))

    results = [scored("fraction_simplification", simplified, seed)[0] for seed in range(4)]
    assert 1.0 in results


@pytest.mark.parametrize("wrong", [999, "10", True, None, [10], 10.5])
def test_a_wrong_scalar_is_a_wrong_call(wrong: object) -> None:
    pytest.importorskip("bfcl_eval", reason="needs the package bfcl-eval (the extra bfcl)")
    env = make("agentgym/BFCLSingle-v0", category="simple_python", num_train=0)
    env.reset(options={"task": 0, "split": "test"})
    call = env.oracle().calls[0]
    assert isinstance(call, ToolCall) and call.arguments["base"] == 10
    changed = ToolCall(call.name, {**call.arguments, "base": wrong}, "0")
    assert env.step(Message("assistant", "", (changed,)))[1] == 0.0


def test_a_command_that_the_game_does_not_list_is_still_taken() -> None:
    pytest.importorskip("textworld", reason="needs the package textworld (the extra textworld)")
    env = make("agentgym/TextWorld-v0", interface="text", game="tw-cooking")
    env.reset(options={"task": 2, "split": "train"})
    while not env.oracle().text.startswith("take "):
        say(env, env.oracle().text)
    short = env.oracle().text.partition(" from ")[0]
    text, *_, info = say(env, short)
    assert info["is_valid"] and short not in env.admissible_actions() and "You take" in text
    env.close()
