"""Questions of one to four hops about a world, each with one right answer and a gold plan of what to look up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from agentgym.envs.search.question import Question
from agentgym.envs.search.world_facts import Facts, Relation, Value, relations_of
from agentgym.errors import UsageError

MAX_HOPS = 4
_PATIENCE = 500
"""Walks that may come to nothing before a world is said to have no question."""


@dataclass(frozen=True, slots=True)
class Chain:
    """From a thing along relations to the answer: ``things[i]``'s ``relations[i]`` is ``things[i + 1]``."""

    things: tuple[int, ...]
    """The thing that is asked about, and those on the way; the answer left out."""
    relations: tuple[str, ...]
    answer: Value
    by_alias: bool = False
    """True if the question names the first thing by its alias."""


def draw_chain(facts: Facts, num_hops: int, relations: Sequence[str], rng: Random) -> Chain:
    """A chain of so many hops that meets nothing twice.

    Raises:
        UsageError: this world has none.
    """
    for _ in range(_PATIENCE):
        chain = _walk(facts, num_hops, relations, rng)
        if chain is not None:
            return chain
    raise UsageError(f"this world has no question of {num_hops} hops: make num_pages larger or name more relations")


def ask(facts: Facts, chain: Chain) -> Question:
    """The chain as a question."""
    first = facts.things[chain.things[0]]
    start = facts.names_of(chain.things[0])[-1] if chain.by_alias else first.name
    phrase = start
    for relation in chain.relations:
        phrase = f"the {relation} of {phrase}"
    is_person = not isinstance(chain.answer, str) and facts.things[chain.answer].kind == "person"
    mentions = [facts.mention_of(thing, name) for thing, name in zip(chain.things, chain.relations, strict=True)]
    return Question(
        text=f"{'Who' if is_person else 'What'} is {phrase}?",
        answers=facts.names_of(chain.answer),
        gold=tuple(facts.things[thing].name for thing in chain.things),
        queries=(start, *mentions[:-1]),
    )


def _walk(facts: Facts, num_hops: int, relations: Sequence[str], rng: Random) -> Chain | None:
    start = rng.randrange(len(facts.things))
    things: list[int] = [start]
    names: list[str] = []
    while True:
        here = things[-1]
        is_last = len(names) == num_hops - 1
        choices = [
            step for step in relations_of(facts.things[here].kind, relations) if _fits(facts, step, things, is_last)
        ]
        if not choices:
            return None
        names.append(rng.choice(choices).name)
        value = facts.values[here, names[-1]]
        if is_last:
            by_alias = facts.things[start].alias is not None and rng.random() < 0.5
            return Chain(tuple(things), tuple(names), value, by_alias)
        assert isinstance(value, int)
        things.append(value)


def _fits(facts: Facts, step: Relation, things: Sequence[int], is_last: bool) -> bool:
    value = facts.values.get((things[-1], step.name))
    return value is not None and value not in things and (is_last or isinstance(value, int))
