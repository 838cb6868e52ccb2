"""More of what generated repositories are about: marks of pupils, a search in texts, and accounts."""

from __future__ import annotations

import random
from typing import Final

from agentgym.envs.code.repository_themes import Theme

_PUPILS: Final = ("ada", "ben", "cleo", "dan", "eve", "finn")
_TEXTS: Final = ("the cat sat", "A dog ran.", "the dog, the cat", "Rain in May", "cat and rain", "May day", "so it ran")
_TERMS: Final = ("cat", "dog", "the", "rain", "may", "sat", "fish")


def _marks(rng: random.Random) -> dict[str, list[int]]:
    names = rng.sample(_PUPILS, rng.randint(1, 4))
    return {name: [rng.randint(0, 20) for _ in range(rng.randint(1, 5))] for name in names}


MARKS: Final = Theme(
    packages=("school", "gradebook", "classroom", "marks"),
    summary="Turns the points of pupils, from 0 to 20 a test, into marks and lists.",
    modules={
        "points": '''
"""Points of one pupil: a list, one entry a test."""


def counted(points):
    """Return the points that count: all but the lowest if there are at least $enough tests, in their order."""
    if len(points) < $enough:
        return list(points)
    worst = points.index(min(points))
    return points[:worst] + points[worst + 1:]


def average(points):
    """Return the mean of the points that count, rounded down; 0 if there are none."""
    kept = counted(points)
    if not kept:
        return 0
    return sum(kept) // len(kept)
''',
        "scale": '''
"""From points to marks."""


def mark(points):
    """Return "A" for at least $best points, "B" for at least $good, "C" for at least $pass_, else "F"."""
    if points >= $best:
        return "A"
    if points >= $good:
        return "B"
    if points >= $pass_:
        return "C"
    return "F"


def has_passed(points):
    """Return True for every mark but "F"."""
    return mark(points) != "F"
''',
        "pupils": '''
"""All pupils: a dict from names to points."""

from $package.points import average
from $package.scale import has_passed, mark


def marks(pupils):
    """Return a dict from each name to the mark of the pupil's average."""
    return {name: mark(average(points)) for name, points in pupils.items()}


def failed(pupils):
    """Return the names of those who have not passed with their average, sorted."""
    return sorted(name for name, points in pupils.items() if not has_passed(average(points)))


def ranks(pupils):
    """Return a dict from each name to 1 plus the number of pupils with a higher average."""
    result = {}
    for name, points in pupils.items():
        better = 0
        for other in pupils.values():
            if average(other) > average(points):
                better += 1
        result[name] = 1 + better
    return result
''',
        "report": '''
"""What goes on the notice board."""

from $package.pupils import failed, marks, ranks


def board(pupils):
    """Return a list of lines like "1 ada A", by rank and then by name, without those who failed."""
    out = failed(pupils)
    places = ranks(pupils)
    given = marks(pupils)
    lines = []
    for place, name in sorted((place, name) for name, place in places.items()):
        if name not in out:
            lines.append(f"{place} {name} {given[name]}")
    return lines


def needs_help(pupils):
    """Return True if at least $weak pupils failed."""
    return len(failed(pupils)) >= $weak
''',
    },
    calls={
        "points.counted": lambda rng: f"counted({[rng.randint(0, 20) for _ in range(rng.randint(0, 6))]})",
        "points.average": lambda rng: f"average({[rng.randint(0, 20) for _ in range(rng.randint(0, 6))]})",
        "scale.mark": lambda rng: f"mark({rng.randint(0, 20)})",
        "pupils.ranks": lambda rng: f"ranks({_marks(rng)})",
        "report.board": lambda rng: f"board({_marks(rng)})",
        "report.needs_help": lambda rng: f"needs_help({_marks(rng)})",
    },
    constants={"enough": (3, 4), "best": (16, 17, 18), "good": (12, 13, 14), "pass_": (8, 9, 10), "weak": (1, 2)},
)


def _texts(rng: random.Random) -> list[str]:
    return rng.sample(_TEXTS, rng.randint(0, 5))


SEARCH: Final = Theme(
    packages=("finder", "lookup", "library", "archive"),
    summary="Finds texts by the words in them.",
    modules={
        "words": '''
"""Words of a text."""


def words(text):
    """Return the words of the text in small letters, without full stops and commas, in their order."""
    return text.replace(".", " ").replace(",", " ").lower().split()


def is_stopword(word):
    """Return True for words of fewer than $short letters."""
    return len(word) < $short
''',
        "index": '''
"""Where words occur: a dict from words to lists of the numbers of the texts, which count from 0."""

from $package.words import is_stopword, words


def indexed(texts):
    """Return the index of a list of texts; each number once, in ascending order, and no stopwords."""
    found = {}
    for number, text in enumerate(texts):
        for word in words(text):
            if not is_stopword(word):
                places = found.setdefault(word, [])
                if number not in places:
                    places.append(number)
    return found


def rarity(index, word):
    """Return $rare if the word is in just one text, 1 if it is in several, and 0 if it is in none."""
    places = index.get(word, [])
    if len(places) == 1:
        return $rare
    if len(places) > 1:
        return 1
    return 0
''',
        "score": '''
"""How well texts match."""

from $package.index import rarity
from $package.words import words


def score(index, query, number):
    """Return the sum of the rarities of the words of the query that are in the text with this number."""
    total = 0
    for word in words(query):
        if number in index.get(word, []):
            total += rarity(index, word)
    return total
''',
        "search": '''
"""What users call."""

from $package.index import indexed
from $package.score import score


def find(texts, query):
    """Return the numbers of the texts that match at all, best first; of equal ones, the first comes first."""
    index = indexed(texts)
    ranked = []
    for number in range(len(texts)):
        points = score(index, query, number)
        if points > 0:
            ranked.append((-points, number))
    return [number for points, number in sorted(ranked)]


def best(texts, query):
    """Return the text that matches best, cut to $width characters, or "nothing"."""
    numbers = find(texts, query)
    if not numbers:
        return "nothing"
    return texts[numbers[0]][:$width]
''',
    },
    calls={
        "words.words": lambda rng: f"words({rng.choice(_TEXTS)!r})",
        "index.indexed": lambda rng: f"indexed({_texts(rng)})",
        "search.find": lambda rng: f"find({_texts(rng)}, {' '.join(rng.sample(_TERMS, 2))!r})",
        "search.best": lambda rng: f"best({_texts(rng)}, {' '.join(rng.sample(_TERMS, 3))!r})",
    },
    constants={"short": (2, 3), "rare": (2, 3, 5), "width": (5, 8, 12)},
)


def _moves(rng: random.Random) -> list[tuple[str, str, int]]:
    names = ("ann", "bob", "cy")
    return [(*rng.sample(names, 2), rng.choice((0, 1, 5, 20, 50, 60, 100))) for _ in range(rng.randint(0, 6))]  # type: ignore[misc]


ACCOUNTS: Final = Theme(
    packages=("bank", "ledger", "purse", "till"),
    summary="Books transfers between accounts, which are a dict from names to amounts.",
    modules={
        "rules": '''
"""What is allowed and what it costs."""


def fee(amount):
    """Return what a transfer costs: $low up to an amount of $limit, $high above."""
    if amount <= $limit:
        return $low
    return $high


def is_allowed(balance, amount):
    """Return True for an amount of at least 1 that, with its fee, takes the balance to no less than -$credit."""
    return amount >= 1 and balance - amount - fee(amount) >= -$credit
''',
        "book": '''
"""Transfers: tuples of who pays, who gets it, and how much."""

from $package.rules import fee, is_allowed


def booked(accounts, transfer):
    """Return the accounts after a transfer, of which the payer bears the fee; unchanged if it is not allowed."""
    payer, receiver, amount = transfer
    after = dict(accounts)
    if is_allowed(accounts.get(payer, 0), amount):
        after[payer] = accounts.get(payer, 0) - amount - fee(amount)
        after[receiver] = accounts.get(receiver, 0) + amount
    return after


def all_booked(accounts, transfers):
    """Return the accounts after all transfers, one after the other."""
    for transfer in transfers:
        accounts = booked(accounts, transfer)
    return accounts
''',
        "statement": '''
"""What customers see."""

from $package.book import all_booked


def balance(accounts, transfers, name):
    """Return what the account of name holds after the transfers; 0 for an account that there is not."""
    return all_booked(accounts, transfers).get(name, 0)


def debtors(accounts, transfers):
    """Return the names of those whose account is below 0 after the transfers, sorted."""
    after = all_booked(accounts, transfers)
    return sorted(name for name in after if after[name] < 0)


def total(accounts, transfers):
    """Return the sum of all accounts after the transfers."""
    return sum(all_booked(accounts, transfers).values())
''',
    },
    calls={
        "rules.fee": lambda rng: f"fee({rng.randint(0, 110)})",
        "rules.is_allowed": lambda rng: f"is_allowed({rng.randint(-60, 60)}, {rng.randint(-2, 60)})",
        "book.booked": lambda rng: f"booked({{'ann': 60, 'bob': 5}}, {(_moves(rng) or [('ann', 'cy', 50)])[0]})",
        "statement.balance": lambda rng: (
            f"balance({{'ann': {rng.randint(0, 99)}, 'bob': 20}}, {_moves(rng)}, {rng.choice(('ann', 'bob', 'cy'))!r})"
        ),
        "statement.debtors": lambda rng: f"debtors({{'ann': {rng.randint(0, 60)}, 'bob': 9}}, {_moves(rng)})",
        "statement.total": lambda rng: f"total({{'ann': {rng.randint(0, 99)}, 'bob': 30}}, {_moves(rng)})",
    },
    constants={"limit": (20, 50), "low": (0, 1), "high": (2, 3), "credit": (0, 10, 50)},
)
