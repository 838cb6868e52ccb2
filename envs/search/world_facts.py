"""The facts of a made encyclopedia: a plain structure, from which pages and questions are made.

Every relation is a function: a thing has at most one birthplace, author or current mayor. What used to be (an earlier
mayor, with the year) is kept apart, so the current facts contradict nothing, and a chain of relations leads to exactly
one thing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from random import Random
from typing import Final

from agentgym.canonical import packaged
from agentgym.errors import UsageError

Value = int | str
"""A thing, by its number, or a word or year as it is written."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation of which a thing of one kind has one."""

    name: str
    kind: str
    """The kind of the things that have it."""
    target: str
    """A kind of thing, ``year``, or the words it is one of, parted by spaces."""
    share: float = 1.0
    """The share of things that have it."""
    is_changing: bool = False
    """True if the value may have been another one in the past."""


RELATIONS: Final = tuple(Relation(**given) for given in packaged(__package__, "world.toml")["relations"])
RELATION_NAMES: Final = tuple(relation.name for relation in RELATIONS)
FIRST_YEAR, LAST_YEAR = 1900, 2000
_SHARES: Final[Mapping[str, float]] = {"person": 0.45, "town": 0.2, "country": 0.06, "book": 0.19, "company": 0.1}


@dataclass(frozen=True, slots=True)
class Thing:
    """A person, place, work or company."""

    kind: str
    name: str
    alias: str | None = None
    """Another name that nothing else has."""


@dataclass(frozen=True, slots=True)
class Former:
    """A changing fact as it was in some year."""

    thing: int
    relation: str
    value: int
    year: int


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts of the world, present and former."""

    things: tuple[Thing, ...]
    values: Mapping[tuple[int, str], Value]
    """Value by thing and relation; a relation that the thing lacks is absent."""
    former: tuple[Former, ...] = ()
    by_alias: frozenset[tuple[int, str]] = field(default_factory=frozenset)
    """Facts whose sentence names their value by its alias."""

    def name_of(self, value: Value) -> str:
        """Return a value as answers write it."""
        return value if isinstance(value, str) else self.things[value].name

    def names_of(self, value: Value) -> tuple[str, ...]:
        """Return all ways to write a value, the usual one first."""
        if isinstance(value, str):
            return (value,)
        thing = self.things[value]
        return (thing.name,) if thing.alias is None else (thing.name, thing.alias)

    def mention_of(self, thing: int, relation: str) -> str:
        """Return the value of a relation as the page of its thing writes it."""
        value = self.values[thing, relation]
        return self.names_of(value)[-1] if (thing, relation) in self.by_alias else self.name_of(value)


def relations_of(kind: str, names: Sequence[str] = RELATION_NAMES) -> tuple[Relation, ...]:
    """Return the relations that a kind of thing has, of those named."""
    return tuple(relation for relation in RELATIONS if relation.kind == kind and relation.name in names)


def draw_facts(
    num_things: int, num_former: int, vocabulary: int, alias_share: float, relations: Sequence[str], rng: Random
) -> Facts:
    """Draw the facts of a world with ``num_things`` things.

    Args:
        num_former: things whose changing fact was another one once; fewer where there are fewer.
        vocabulary: number of words that names are made of.
        alias_share: share of things that have a second name; half of the sentences about them use it.
        relations: names of the relations there are.

    Raises:
        UsageError: the vocabulary is too small.
    """
    things = _draw_things(num_things, vocabulary, alias_share, rng)
    of_kind = {kind: [at for at, thing in enumerate(things) if thing.kind == kind] for kind in KINDS}
    values: dict[tuple[int, str], Value] = {}
    for relation in RELATIONS:
        if relation.name in relations:
            _draw_values(relation, of_kind, values, rng)
    aliased = [key for key, value in values.items() if isinstance(value, int) and things[value].alias is not None]
    by_alias = frozenset(key for key in aliased if rng.random() < 0.5)
    changing = {relation.name for relation in RELATIONS if relation.is_changing}
    once = [key for key in values if key[1] in changing]
    former = [
        Former(thing, name, _other(of_kind["person"], (thing, values[thing, name]), rng), _year(rng))
        for thing, name in rng.sample(once, min(num_former, len(once)))
    ]
    return Facts(tuple(things), values, tuple(former), by_alias)


def _draw_things(num_things: int, vocabulary: int, alias_share: float, rng: Random) -> list[Thing]:
    words = name_words(vocabulary)
    counts = {kind: max(1, int(share * num_things)) for kind, share in _SHARES.items()}
    counts["person"] = max(3, num_things - sum(counts[kind] for kind in KINDS if kind != "person"))
    things = []
    for kind in KINDS:
        num_aliases = round(alias_share * counts[kind])
        names = draw_names(kind, counts[kind] + num_aliases, words, rng)
        aliases = names[counts[kind] :] + [None] * (counts[kind] - num_aliases)
        things += [Thing(kind, name, alias) for name, alias in zip(names, aliases, strict=False)]
    return things


def _draw_values(
    relation: Relation, of_kind: Mapping[str, Sequence[int]], values: dict[tuple[int, str], Value], rng: Random
) -> None:
    targets = _targets(relation, of_kind, values)
    for thing in of_kind[relation.kind]:
        if (thing, relation.name) in values or rng.random() >= relation.share:
            continue
        if relation.target == "year":
            values[thing, relation.name] = str(_year(rng))
        elif relation.target not in of_kind:
            values[thing, relation.name] = rng.choice(relation.target.split())
        elif relation.name != "spouse":
            if near := targets(thing):
                values[thing, relation.name] = _other(near, (thing,), rng)
        elif ((other := _other(targets(thing), (thing,), rng)), "spouse") not in values:
            values[thing, "spouse"], values[other, "spouse"] = other, thing


def _targets(
    relation: Relation, of_kind: Mapping[str, Sequence[int]], values: Mapping[tuple[int, str], Value]
) -> Callable[[int], Sequence[int]]:
    """Return the possible targets of a relation: all things of a kind, but as a capital only towns of the country."""
    if relation.name != "capital" or (of_kind["town"][0], "country") not in values:
        return lambda thing: of_kind[relation.target]
    towns_of: dict[Value, list[int]] = defaultdict(list)
    for town in of_kind["town"]:
        towns_of[values[town, "country"]].append(town)
    return lambda thing: towns_of[thing]


def _other(candidates: Sequence[int], excluded: Sequence[Value], rng: Random) -> int:
    """Return one of at least three candidates, or the only one, that is none of the excluded."""
    while True:
        found = rng.choice(candidates)
        if found not in excluded:
            return found


def _year(rng: Random) -> int:
    return rng.randrange(FIRST_YEAR, LAST_YEAR)


# ---------- names of the made encyclopedia's people, places and works: made-up words, in ways that tell the kinds apart

KINDS: Final = ("person", "town", "country", "book", "company")

_ENDINGS: Final[dict[str, tuple[str, ...]]] = {
    "town": ("Bay", "Hill", "Ford", "Falls", "Cross", "Vale", "Moor", "Gate"),
    "country": ("Islands", "Republic", "Union", "Coast"),
    "book": ("Song", "Winter", "Garden", "Letters", "Harbour", "Mirror", "Road", "Dream"),
    "company": ("Works", "Motors", "Foods", "Press", "Mills", "Glass", "Steel", "Tools"),
}
_ONSETS, _VOWELS, _CODAS = "bdfgklmnprtvz", "aeiou", "nrkm"
_NUM_WORDS: Final = len(_ONSETS) * len(_VOWELS) * len(_ONSETS) * len(_VOWELS) * len(_CODAS)
MAX_VOCABULARY: Final = _NUM_WORDS


@lru_cache(maxsize=8)
def name_words(num_words: int) -> tuple[str, ...]:
    """Return the first ``num_words`` words of which names are made; the same in every world.

    Example:
        >>> words = name_words(6)
        >>> len(set(words)), all(word.isalpha() and word.istitle() for word in words)
        (6, True)
    """
    if not 2 <= num_words <= MAX_VOCABULARY:
        raise UsageError(f"vocabulary must be between 2 and {MAX_VOCABULARY:,}, got {num_words}")
    spelled = ["".join(letters).title() for letters in product(_ONSETS, _VOWELS, _ONSETS, _VOWELS, _CODAS)]
    Random(0).shuffle(spelled)  # words that follow one another should not look alike
    return tuple(spelled[:num_words])


def draw_names(kind: str, num_names: int, words: Sequence[str], rng: Random) -> list[str]:
    """Different names of a kind; none can be a name of another kind.

    Raises:
        UsageError: there are not enough words for so many names.
    """
    endings = _ENDINGS.get(kind, tuple(words))
    prefixes = len(words) if len(words) * len(endings) >= 2 * num_names else len(words) ** 2
    if num_names > prefixes * len(endings):
        raise UsageError(
            f"a vocabulary of {len(words)} words gives {prefixes * len(endings)} names of a {kind}, "
            f"{num_names} are needed: make vocabulary larger or num_pages smaller"
        )
    names = []
    for number in rng.sample(range(prefixes * len(endings)), num_names):
        prefix, ending = divmod(number, len(endings))
        first, second = divmod(prefix, len(words))
        start = words[second] if prefixes == len(words) else f"{words[first]} {words[second]}"
        names.append(f"{start} {endings[ending]}")
    return names
