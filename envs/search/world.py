"""A made encyclopedia as a whole: drawn from a seed, indexed, and shared by the environments of a process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from random import Random

from agentgym.envs.search.question import Question
from agentgym.envs.search.world_facts import (
    MAX_VOCABULARY,
    RELATION_NAMES,
    Facts,
    Relation,
    Value,
    draw_facts,
    relations_of,
)
from agentgym.envs.search.world_pages import Page, PageCounts, render
from agentgym.errors import UsageError, require_known
from agentgym.settings import Range, check_number
from agentgym.tools.retrieval.memory import MemoryRetriever
from agentgym.tools.retrieval.types import Retriever

MIN_PAGES, MAX_PAGES = 16, 100_000
SPLIT_STRIDE = 1_000_000_000
_FEW_PAGES = 1_000
"""Most pages of a small world. Hundreds of small worlds are cached, but only a few larger ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """The difficulty of a world and its questions.

    Raises:
        UsageError: a value is out of range; the message says what is allowed.
    """

    num_pages: int = 500
    hops: tuple[int, ...] = (1, 2)
    """Hops of the questions; each question draws one."""
    aliases: float = 0.2
    """Share of things with a second name, which pages and questions may use."""
    stale_pages: float = 0.1
    """Share of pages that tell an outdated fact of some year."""
    distractors: float = 0.1
    """Share of pages that name things without telling a fact that is asked for."""
    injections: float = 0.0
    """Share of pages that tell the reader to ignore the task."""
    vocabulary: int = 400
    """Number of words that names are made of."""
    fillers: int = 2
    """Sentences without facts on every page of a thing."""
    relations: tuple[str, ...] = RELATION_NAMES
    """The relations that pages tell and questions ask about."""
    num_worlds: int = 1
    """Worlds of a split; 0 gives every task a world of its own."""

    def __post_init__(self) -> None:
        check_number("num_pages", self.num_pages, Range(at_least=MIN_PAGES, at_most=MAX_PAGES))
        object.__setattr__(self, "hops", tuple(self.hops))  # a task's data, read from JSON, has lists
        object.__setattr__(self, "relations", tuple(self.relations))
        if not self.hops:
            raise UsageError(f"hops must name at least one number from 1 to {MAX_HOPS}")
        for hops in self.hops:
            check_number("hops", hops, Range(at_least=1, at_most=MAX_HOPS))
        for name in ("aliases", "stale_pages", "distractors", "injections"):
            check_number(name, getattr(self, name), Range(at_least=0, at_most=1))
        if self.stale_pages + self.distractors + self.injections > 0.5:
            raise UsageError("stale_pages, distractors and injections must sum to at most 0.5: things need pages, too")
        check_number("vocabulary", self.vocabulary, Range(at_least=2, at_most=MAX_VOCABULARY))
        check_number("fillers", self.fillers, Range(at_least=0, at_most=20))
        check_number("num_worlds", self.num_worlds, Range(at_least=0, at_most=1_000_000))
        for name in self.relations:
            require_known("relation", name, RELATION_NAMES)

    def as_data(self) -> dict[str, object]:
        """Return the difficulty as a task's data."""
        return asdict(self)


class World:
    """Facts, their pages, and an index of these in memory.

    Example:
        >>> world = World(Difficulty(num_pages=60), seed=1)
        >>> len(world.pages), len(world.retriever)
        (60, 60)
        >>> question = world.question(seed=4)
        >>> world.retriever.search(question.queries[0], 5)[0].doc_id == question.gold[0]
        True
    """

    def __init__(self, difficulty: Difficulty, seed: int) -> None:
        rng = Random(seed)
        num_pages, self.difficulty = difficulty.num_pages, difficulty
        num_injections = round(difficulty.injections * num_pages)
        num_stale = round(difficulty.stale_pages * num_pages)
        num_distractors = round(difficulty.distractors * num_pages)
        num_things = num_pages - num_injections - num_stale - num_distractors
        self.facts: Facts = draw_facts(
            num_things, num_stale, difficulty.vocabulary, difficulty.aliases, difficulty.relations, rng
        )
        num_missing = num_pages - num_injections - len(self.facts.things) - len(self.facts.former)
        counts = PageCounts(max(0, num_missing), num_injections, difficulty.fillers)
        self.pages: tuple[Page, ...] = render(self.facts, counts, difficulty.relations, rng)

    @cached_property
    def page_of(self) -> Mapping[str, Page]:
        """Pages by title."""
        return {page.title: page for page in self.pages}

    @cached_property
    def thing_of(self) -> Mapping[str, int]:
        """Things by their names and aliases, in lower case."""
        names = enumerate(map(self.facts.names_of, range(len(self.facts.things))))
        return {name.lower(): thing for thing, known in names for name in known}

    @cached_property
    def retriever(self) -> Retriever:
        """The index of the pages."""
        return MemoryRetriever(page.document() for page in self.pages)

    def question(self, seed: int) -> Question:
        """Return the question of a seed; one of the hops' numbers, each as likely."""
        rng = Random(seed)
        num_hops = self.difficulty.hops[rng.randrange(len(self.difficulty.hops))]
        return ask(self.facts, draw_chain(self.facts, num_hops, self.difficulty.relations, rng))


def world_of(difficulty: Difficulty, world_seed: int) -> World:
    """Return the world of a seed, from the cache if it was used recently."""
    make = _small_world if difficulty.num_pages <= _FEW_PAGES else _large_world
    return make(difficulty, world_seed)


def world_seed_of(difficulty: Difficulty, task_seed: int) -> int:
    """Return the seed of a task's world; splits, whose seeds are a billion apart, share none."""
    number = task_seed % SPLIT_STRIDE
    return task_seed - number + (number % difficulty.num_worlds if difficulty.num_worlds else number)


_small_world = lru_cache(maxsize=128)(World)
_large_world = lru_cache(maxsize=3)(World)


# ----------- questions of one to four hops about a world, each with one right answer and a gold plan of what to look up

MAX_HOPS = 4
_PATIENCE = 500
"""Failed random walks after which a world counts as having no question."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A path from a thing along relations to the answer: ``things[i]``'s ``relations[i]`` is ``things[i + 1]``."""

    things: tuple[int, ...]
    """The thing that is asked about, and those on the way; the answer left out."""
    relations: tuple[str, ...]
    answer: Value
    by_alias: bool = False
    """True if the question names the first thing by its alias."""


def draw_chain(facts: Facts, num_hops: int, relations: Sequence[str], rng: Random) -> Chain:
    """Return a chain of ``num_hops`` hops that visits nothing twice.

    Raises:
        UsageError: this world has none.
    """
    for _ in range(_PATIENCE):
        chain = _walk(facts, num_hops, relations, rng)
        if chain is not None:
            return chain
    raise UsageError(f"this world has no question of {num_hops} hops: make num_pages larger or name more relations")


def ask(facts: Facts, chain: Chain) -> Question:
    """Return the chain as a question."""
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
