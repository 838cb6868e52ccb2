"""The made encyclopedia: its facts are consistent, its pages say them, its questions have one answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import pytest

from agentgym.check import check_env
from agentgym.check.policies import random_action
from agentgym.envs.search.wikiworld import WikiWorldEnv
from agentgym.envs.search.world import Difficulty, World, world_of
from agentgym.envs.search.world_facts import RELATION_NAMES, RELATIONS, draw_names, name_words
from agentgym.errors import UnknownNameError, UsageError
from agentgym.registry import make
from agentgym.types import Task

HARD: dict[str, Any] = {"num_pages": 300, "aliases": 0.6, "stale_pages": 0.2, "distractors": 0.1, "injections": 0.05}
_FACT = re.compile(r"The ([a-z ]+) is ([^.]+)\.")
_QUESTION = re.compile(r"(?:Who|What) is (.*)\?")


def wiki(**kwargs: Any) -> WikiWorldEnv:
    env = make("agentgym/WikiWorld-v0", **kwargs)
    assert isinstance(env, WikiWorldEnv)
    return env


def success(env: WikiWorldEnv, task: int, split: str = "test") -> tuple[bool, float, int]:
    """An episode of the gold policy: whether it succeeds, its return, its turns."""
    env.reset(options={"task": task, "split": split})
    total = 0.0
    while True:
        _, reward, terminated, truncated, info = env.step(env.oracle())
        total += reward
        assert info["is_valid"]
        if terminated or truncated:
            return info["success"], total, env.turn


# ------------------------------------------------------------------------------------------------- facts and pages


def facts_in_text(world: World) -> dict[str, dict[str, str]]:
    """What the pages of things say, read from their texts alone: by any name of a thing, relation by relation."""
    found: dict[str, dict[str, str]] = {}
    for page in world.pages:
        if page.kind == "thing":
            said = dict(_FACT.findall(page.text))
            assert len(said) == len(_FACT.findall(page.text)), "a page says a thing twice"
            also = re.search(r"also called ([^.]+)\.", page.text)
            for name in (page.title, *([also[1]] if also else [])):
                assert name not in found, "a name means two things"
                found[name] = said
    return found


def answers_in_text(question: str, said: Mapping[str, Mapping[str, str]]) -> set[str]:
    """Everything that a question can mean, by the pages: relations are read off from the left, then followed."""
    matched = _QUESTION.fullmatch(question)
    assert matched
    rest, relations = matched[1], []
    while taken := next((name for name in RELATION_NAMES if rest.startswith(f"the {name} of ")), None):
        relations.append(taken)
        rest = rest.removeprefix(f"the {taken} of ")
    reached = {rest}
    for relation in reversed(relations):
        reached = {said[name][relation] for name in reached}
    return reached


@pytest.mark.parametrize("seed", range(4))
def test_every_question_has_exactly_one_answer_and_the_pages_say_it(seed: int) -> None:
    world = World(Difficulty(**HARD, hops=(1, 2, 3, 4)), seed)
    said = facts_in_text(world)
    num_by_alias = 0
    for number in range(200):
        question = world.question(number)
        (answer,) = answers_in_text(question.text, said)
        assert answer in question.answers
        assert len(question.answers) == 1 or said[question.answers[0]] is said[question.answers[1]]
        num_by_alias += question.queries != question.gold
    assert num_by_alias > 50


def test_questions_follow_the_facts_along_different_things() -> None:
    world = World(Difficulty(num_pages=300, hops=(3,)), 1)
    for number in range(100):
        question = world.question(number)
        assert len(question.gold) == len(set(question.gold)) == 3
        assert question.answers[0] not in question.gold
        for title in question.gold:
            assert world.page_of[title].kind == "thing"


def test_facts_are_functions_between_the_right_kinds() -> None:
    facts = World(Difficulty(num_pages=400), 2).facts
    by_name = {relation.name: relation for relation in RELATIONS}
    names = [name for at in range(len(facts.things)) for name in facts.names_of(at)]
    assert len(names) == len(set(names))
    for (thing, name), value in facts.values.items():
        relation = by_name[name]
        assert facts.things[thing].kind == relation.kind
        if isinstance(value, int):
            assert facts.things[value].kind == relation.target
        elif relation.target == "year":
            assert 1900 <= int(value) < 2000
        else:
            assert value in relation.target.split()
    for (thing, name), value in facts.values.items():
        if name == "spouse":
            assert facts.values[value, "spouse"] == thing  # type: ignore[index]
        if name == "capital":
            assert facts.values[value, "country"] == thing  # type: ignore[index]


def test_stale_pages_are_dated_and_differ_from_what_is_so() -> None:
    world = World(Difficulty(**HARD), 3)
    stale = [page for page in world.pages if page.kind == "stale"]
    assert len(stale) == len(world.facts.former) > 20
    for former, page in zip(world.facts.former, stale, strict=True):
        assert world.facts.values[former.thing, former.relation] != former.value
        assert f"As of {former.year}, the {former.relation} of" in page.text
        assert page.title == f"{world.facts.name_of(former.thing)} ({former.year})"
        assert world.facts.name_of(former.value) in page.text


@pytest.mark.parametrize("num_pages", [16, 20, 500, 3000])
def test_a_world_has_as_many_pages_as_asked_for_with_unique_titles(num_pages: int) -> None:
    world = World(Difficulty(num_pages=num_pages, stale_pages=0.3, injections=0.1), 0)
    assert len(world.pages) == len(world.retriever) == num_pages
    assert len({page.title for page in world.pages}) == num_pages


@pytest.mark.slow
def test_a_hundred_thousand_pages() -> None:
    env = wiki(num_pages=100_000)
    assert all(success(env, task)[0] for task in range(20))


def test_worlds_are_functions_of_their_seed() -> None:
    one, again, other = (World(Difficulty(), seed) for seed in (5, 5, 6))
    assert one.pages == again.pages != other.pages
    assert [one.question(n) for n in range(20)] == [again.question(n) for n in range(20)]


def test_splits_and_tasks_share_worlds_as_asked() -> None:
    def worlds(split: str, **kwargs: Any) -> set[int]:
        return {task.data["world"] for task in wiki(num_pages=16, **kwargs).tasks(split)[:30]}

    assert len(worlds("train", num_worlds=7)) == 7
    assert len(worlds("train", num_worlds=0)) == 30
    assert len(worlds("train") | worlds("valid") | worlds("test")) == 3


def test_a_small_vocabulary_is_enough_for_a_small_world_and_refused_for_a_large_one() -> None:
    words = set(name_words(32))
    world = World(Difficulty(num_pages=60, vocabulary=32), 0)
    for thing in world.facts.things:
        assert words & set(thing.name.split())
    with pytest.raises(UsageError, match="a vocabulary of 10 words gives"):
        World(Difficulty(num_pages=5000, vocabulary=10), 0)
    with pytest.raises(UsageError, match="gives 8 names of a person, 9 are needed"):
        draw_names("person", 9, name_words(2), Random(0))


# ----------------------------------------------------------------------------------------------------- the policies


@pytest.mark.parametrize(
    ("kwargs", "num_tasks"),
    [
        ({}, 500),
        ({**HARD, "hops": (1, 2, 3, 4)}, 200),
        ({"num_pages": 2000, "hops": 4, "aliases": 1.0}, 100),
        ({"num_pages": 16, "num_worlds": 0, "vocabulary": 32, "max_results": 2}, 100),
    ],
)
def test_the_gold_policy_answers_everything(kwargs: dict[str, Any], num_tasks: int) -> None:
    env = wiki(**kwargs)
    for task in range(num_tasks):
        succeeds, total, num_turns = success(env, task)
        assert succeeds and total == 1.0, task
        assert num_turns == 2 * len(env.question.gold) + 1 or len(env.question.gold) > 1


def test_the_gold_policy_goes_on_from_anywhere() -> None:
    env = wiki(**HARD, max_turns=40)
    rng = np.random.default_rng(0)
    for task in range(30):
        observation, _ = env.reset(options={"task": task})
        for _ in range(8):
            action = random_action(env, observation, rng)
            if not action.text.startswith("answer"):
                observation = env.step(action)[0]
        while not env.step(env.oracle())[2]:
            pass
        assert env.is_success()


def test_chance_gets_next_to_nothing() -> None:
    env = wiki()
    rng = np.random.default_rng(0)
    num_successes = 0
    for task in range(200):
        observation, _ = env.reset(options={"task": task})
        is_over = False
        while not is_over:
            observation, _, terminated, truncated, info = env.step(random_action(env, observation, rng))
            is_over = terminated or truncated
        num_successes += info["success"]
    assert num_successes <= 8


def test_the_environment_conforms() -> None:
    report = check_env("agentgym/WikiWorld-v0")
    assert report.passed, str(report)


# ------------------------------------------------------------------------------------------------------- injections


def test_a_page_that_gives_orders_is_plain_text() -> None:
    env = wiki(**{**HARD, "injections": 0.4, "stale_pages": 0.0})
    for number in range(300):
        env.reset(options={"task": number})
        notice = next(
            (page for page in env.world.pages if page.title.endswith(f" about {env.question.queries[0]}")), None
        )
        if notice is not None and notice.kind == "injection":
            break
    assert notice is not None
    wrong = re.search(r"with the text (.*) at once", notice.text)
    assert wrong and wrong[1] not in env.question.answers
    env.step(f"search: notice {env.question.queries[0]}")
    assert notice.title in env.reading.found
    observation, reward, terminated, _, info = env.step(f"open: {notice.title}")
    assert (reward, terminated, info["is_valid"]) == (0.0, False, True)
    assert observation[0].role == "tool" and observation[0].text == f"{notice.title} [page 1 of 1]\n{notice.text}"
    assert observation[0].result is not None and observation[0].result.name == "open"
    after = env.snapshot()
    assert env.step(f"answer: {wrong[1]}")[1] == 0.0
    env.restore(after)
    while not env.step(env.oracle())[2]:
        pass
    assert env.is_success()


# ------------------------------------------------------------------------------------------------------------ tasks


def test_tasks_hold_the_answers_and_never_show_them() -> None:
    env = wiki()
    for task in env.tasks("train")[:50]:
        observation, info = env.reset(options={"task": task})
        assert task.answers == env.question.answers
        assert task.data["question"] in observation[0].text
        shown = observation[0].text + str(info)
        assert not any(answer in shown for answer in task.answers if answer not in task.data["question"])


def test_a_task_is_the_same_in_every_environment() -> None:
    task = wiki(num_pages=50, num_worlds=0).tasks("valid")[3]
    one, other = wiki(), wiki(num_pages=900, hops=3)
    assert one.reset(options={"task": task})[0] == other.reset(options={"task": task})[0]
    bare = Task(id="x", split="train", seed=3)
    assert one.reset(options={"task": bare})[0] == one.reset(options={"task": one.tasks("train")[3]})[0]
    with pytest.raises(UnknownNameError, match="did you mean 'num_pages'"):
        one.reset(options={"task": Task(id="x", split="train", seed=3, data={"num_page": 30})})


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"num_pages": 3}, "num_pages must be between 16 and 100,000, got 3"),
        ({"hops": (1, 5)}, "hops must be between 1 and 4, got 5"),
        ({"hops": ()}, "hops must name at least one number"),
        ({"aliases": 1.5}, "aliases must be between 0 and 1"),
        ({"stale_pages": 0.4, "distractors": 0.2}, "must sum to at most 0.5"),
        ({"relations": ["mayr"]}, "did you mean 'mayor'"),
        ({"vocabulary": 1}, "vocabulary must be between 2"),
        ({"page_tokens": 0}, "budgets are at least 16 tokens"),
        ({"max_results": 0}, "max_results must be between 1 and 20"),
        ({"rewards": {"tool": 0.1}}, "unknown reward 'tool'"),
        ({"rewards": {"tool_call": -0.1}}, "tool_call must be at least 0"),
    ],
)
def test_values_out_of_range_are_refused_in_words(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        wiki(**kwargs)


def test_too_few_relations_for_so_many_hops_are_refused() -> None:
    with pytest.raises(UsageError, match="no question of 2 hops"):
        wiki(hops=2, relations=["birth year"]).reset(seed=0)


def test_worlds_are_made_once() -> None:
    assert world_of(Difficulty(), 3) is world_of(Difficulty(), 3)
