"""Check by rule that a question about a made encyclopedia has the answer that its author names.

Search self-play asks a model to answer the question from the author's search results alone. The facts of a made
encyclopedia are known, so that a rule can decide it, without a model's errors. The price is that a question must have
the form that the rule can read: relations and a name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from agentgym.envs.search.world import MAX_HOPS, Chain, World
from agentgym.envs.search.world_facts import RELATION_NAMES, Value
from agentgym.scoring.text import normalize

MAX_NAMED_PAGES: Final = 2 * MAX_HOPS
"""Most pages that a proposal may name."""
_QUESTION: Final = re.compile(r"(?:who|what) is (.+?)\??")
_RELATION: Final = re.compile(rf"the ({'|'.join(map(re.escape, RELATION_NAMES))}) of (.+)")

REASONS: Final = {
    "unreadable": 'the question is not like "Who is the mayor of the birthplace of NAME?"',
    "unknown_name": "the question names nothing of the encyclopedia",
    "no_fact": "the encyclopedia does not say what is asked for",
    "circle": "the question leads back to a thing that it has passed",
    "too_many_hops": "the question has too many hops",
    "off_topic": "the way to the answer does not pass the given page",
    "unseen_page": f"name 1 to {MAX_NAMED_PAGES} pages that your searches have shown",
    "answer_in_question": "the question contains the answer",
    "answer_not_on_pages": "the answer does not stand on the pages named",
    "not_on_pages": "the pages named do not hold all facts on the way to the answer",
    "wrong_answer": "the facts lead to another answer",
}
"""Reasons why a proposal is invalid, with what its author reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A question, its answer, and the ids of the pages that show it."""

    question: str
    answer: str
    pages: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Conditions of a proposal that depend on the episode."""

    topic: str
    """Title of the page that the way to the answer must pass."""
    found: Collection[str]
    """Ids of the pages that the author's searches have shown."""
    max_hops: int = MAX_HOPS


def read_question(world: World, text: str) -> Chain | str:
    """Return the chain of facts that a question asks for, or the key of :data:`REASONS` why there is none.

    Example:
        >>> from agentgym.envs.search.world import Difficulty
        >>> world = World(Difficulty(num_pages=60), seed=1)
        >>> chain = read_question(world, world.question(seed=4).text)
        >>> world.facts.name_of(chain.answer) == world.question(seed=4).answers[0]
        True
        >>> read_question(world, "Where does it rain?"), read_question(world, "Who is the mayor of Atlantis?")
        ('unreadable', 'unknown_name')
    """
    asked = _QUESTION.fullmatch(" ".join(text.lower().split()))
    if asked is None:
        return "unreadable"
    phrase = asked.group(1)
    relations: list[str] = []
    while (found := _RELATION.fullmatch(phrase)) is not None:
        relations.insert(0, found.group(1))
        phrase = found.group(2)
    if not relations:
        return "unreadable"
    start = world.thing_of.get(phrase)
    return "unknown_name" if start is None else _follow(world, start, relations, phrase)


def flaw_of(world: World, proposal: Proposal, terms: Terms) -> str:
    """Return the key of :data:`REASONS` for the first rule that a proposal breaks, or an empty text if it is valid."""
    chain = read_question(world, proposal.question)
    if isinstance(chain, str):
        return chain
    facts = world.facts
    if len(chain.relations) > terms.max_hops:
        return "too_many_hops"
    answers = facts.names_of(chain.answer)
    way = [facts.things[thing].name for thing in chain.things]
    if terms.topic not in (*way, answers[0]):
        return "off_topic"
    if not 1 <= len(proposal.pages) <= MAX_NAMED_PAGES or not set(proposal.pages) <= set(terms.found):
        return "unseen_page"
    return _flaw_of_answer(world, proposal, answers, way)


def _flaw_of_answer(world: World, proposal: Proposal, answers: Sequence[str], way: Sequence[str]) -> str:
    if any(_contains(proposal.question, name) for name in (*answers, proposal.answer)):
        return "answer_in_question"
    if not any(_contains(world.page_of[page].text, proposal.answer) for page in proposal.pages):
        return "answer_not_on_pages"
    if not set(way) <= set(proposal.pages):  # the page of a thing states all its facts
        return "not_on_pages"
    if normalize(proposal.answer) not in map(normalize, answers):
        return "wrong_answer"
    return ""


def _follow(world: World, start: int, relations: Sequence[str], name: str) -> Chain | str:
    facts, things = world.facts, [start]
    value: Value = start
    for relation in relations:
        found = facts.values.get((value, relation)) if isinstance(value, int) else None
        if found is None:
            return "no_fact"
        value = found
        if value in things:
            return "circle"
        if isinstance(value, int):
            things.append(value)
    by_alias = name != facts.things[start].name.lower()
    return Chain(tuple(things[: len(relations)]), tuple(relations), value, by_alias)


def _contains(text: str, words: str) -> bool:
    """Return True if a text contains words as whole words, after normalisation."""
    return f" {normalize(words)} " in f" {normalize(text)} "
