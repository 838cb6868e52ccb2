"""What generated repositories are about: modules that build on one another, and calls of the topmost that try them.

Templates as in :mod:`agentgym.envs.code.function_families`; ``$package`` stands for the package's name. A module comes
after those it imports, and its docstrings say all that it has to do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """One kind of repository."""

    packages: Sequence[str]
    """Names that the package may have."""
    summary: str
    modules: Mapping[str, str]
    """Template by module name; the last is the one that users call."""
    calls: Mapping[str, Callable[[random.Random], str]]
    """For every public function, by ``module.function``, a maker of calls with arguments that make sense."""
    constants: Mapping[str, Sequence[int | str]] = field(default_factory=dict)


_GOODS: Final = ("bread", "milk", "tea", "soap", "rice")


def _prices(rng: random.Random) -> dict[str, int]:
    return {name: rng.randint(1, 60) for name in _GOODS}


def _order(rng: random.Random) -> dict[str, int]:
    return {name: rng.choice((1, 2, 4, 5, 6, 9, 10, 11, 20)) for name in rng.sample(_GOODS, rng.randint(0, 4))}


def _stock(rng: random.Random) -> dict[str, int]:
    return {name: rng.randint(0, 25) for name in rng.sample(_GOODS, rng.randint(2, 5))}


SHOP: Final = Theme(
    packages=("shop", "market", "kiosk", "bazaar"),
    summary="Prices orders in whole cents and says what can be shipped.",
    modules={
        "pricing": '''
"""Prices of order lines."""


def bulk_percent(count):
    """Return the discount in percent: $small for at least $few pieces, $large for at least $many, else 0."""
    if count >= $many:
        return $large
    if count >= $few:
        return $small
    return 0


def reduced(amount, percent):
    """Return the amount less so many percent of it, rounded down."""
    return amount * (100 - percent) // 100


def with_tax(amount):
    """Return the amount plus $tax percent of it, rounded down."""
    return amount + amount * $tax // 100
''',
        "stock": '''
"""What is in the warehouse: a dict from names to counts."""


def available(stock, name):
    """Return how many pieces there are; 0 for what the warehouse does not know. $reserve pieces are kept back."""
    return max(0, stock.get(name, 0) - $reserve)


def missing(stock, order):
    """Return a dict from each name of the order to how many pieces are lacking, without those that are not."""
    lacking = {}
    for name, count in order.items():
        if count > available(stock, name):
            lacking[name] = count - available(stock, name)
    return lacking
''',
        "orders": '''
"""Orders: dicts from names to counts."""

from $package.pricing import bulk_percent, reduced, with_tax
from $package.stock import available


def line_total(price, count):
    """Return what count pieces cost, with the discount for bulk, without tax."""
    return reduced(price * count, bulk_percent(count))


def total(prices, order):
    """Return what an order costs: its lines and then the tax on their sum."""
    amount = 0
    for name, count in order.items():
        amount += line_total(prices[name], count)
    return with_tax(amount)


def shippable(stock, order):
    """Return the part of the order that can be shipped: as much of each as is available, without what is not."""
    part = {}
    for name, count in order.items():
        if available(stock, name) > 0:
            part[name] = min(count, available(stock, name))
    return part
''',
        "desk": '''
"""What the sales desk asks for."""

from $package.orders import shippable, total
from $package.stock import missing


def invoice(prices, order):
    """Return the total of an order, and postage of $postage on top if the total is below $free."""
    amount = total(prices, order)
    if amount < $free:
        return amount + $postage
    return amount


def delivery(prices, stock, order):
    """Return a tuple: the invoice for what can be shipped now, and the names of what is missing, sorted."""
    return (invoice(prices, shippable(stock, order)), sorted(missing(stock, order)))
''',
    },
    calls={
        "pricing.bulk_percent": lambda rng: f"bulk_percent({rng.randint(0, 24)})",
        "pricing.with_tax": lambda rng: f"with_tax({rng.randint(0, 500)})",
        "stock.missing": lambda rng: f"missing({_stock(rng)}, {_order(rng)})",
        "orders.total": lambda rng: f"total({_prices(rng)}, {_order(rng)})",
        "desk.invoice": lambda rng: f"invoice({_prices(rng)}, {_order(rng)})",
        "desk.delivery": lambda rng: f"delivery({_prices(rng)}, {_stock(rng)}, {_order(rng)})",
    },
    constants={
        "few": (4, 5, 6), "many": (10, 12, 20), "small": (5, 10), "large": (15, 20, 25), "tax": (7, 19, 20),
        "reserve": (0, 1, 2), "postage": (3, 5, 7), "free": (100, 200, 300),
    },
)  # fmt: skip


def _time(rng: random.Random, first: int = 7, last: int = 19) -> str:
    return f"{rng.randint(first, last):02}:{rng.choice((0, 15, 30, 45)):02}"


def _bookings(rng: random.Random) -> list[tuple[str, str]]:
    made = []
    for _ in range(rng.randint(0, 5)):
        first, second = sorted((_time(rng), _time(rng)))
        if first != second:
            made.append((first, second))
    return made


CALENDAR: Final = Theme(
    packages=("rooms", "planner", "diary", "bookings"),
    summary="Keeps the bookings of a room: pairs of times like 09:30, from the first up to the second.",
    modules={
        "clock": '''
"""Times of day as text and as minutes since midnight."""


def minutes(text):
    """Return the minutes since midnight of a time like 09:30."""
    hours, rest = text.split(":")
    return int(hours) * 60 + int(rest)


def shown(count):
    """Return minutes since midnight as a time like 09:30."""
    return f"{count // 60:02}:{count % 60:02}"
''',
        "spans": '''
"""Spans of time: tuples of two counts of minutes, the second is not part of it."""


def overlaps(first, second):
    """Return True if two spans have at least a minute in common."""
    return first[0] < second[1] and second[0] < first[1]


def merged(spans):
    """Return the spans in order of time, with those that overlap or touch made one."""
    result = []
    for start, stop in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], stop))
        else:
            result.append((start, stop))
    return result


def gaps(spans, opening, closing):
    """Return the spans between opening and closing that none of the given ones covers."""
    result = []
    free = opening
    for start, stop in merged(spans):
        if start > free:
            result.append((free, min(start, closing)))
        free = max(free, stop)
    if free < closing:
        result.append((free, closing))
    return [(start, stop) for start, stop in result if start < stop]
''',
        "room": '''
"""The room is open from $opening:00 to $closing:00."""

from $package.clock import minutes
from $package.spans import gaps, overlaps

OPENING = $opening * 60
CLOSING = $closing * 60


def spans_of(bookings):
    """Return bookings, which are pairs of times as text, as spans of minutes."""
    return [(minutes(first), minutes(second)) for first, second in bookings]


def conflicts(bookings, wanted):
    """Return the bookings that overlap with the wanted one, in their order."""
    spans = spans_of(bookings)
    (span,) = spans_of([wanted])
    return [bookings[index] for index in range(len(bookings)) if overlaps(spans[index], span)]


def free_spans(bookings, length):
    """Return the spans while the room is open and free that are at least length minutes long."""
    return [span for span in gaps(spans_of(bookings), OPENING, CLOSING) if span[1] - span[0] >= length]
''',
        "agenda": '''
"""What people ask about a day."""

from $package.clock import shown
from $package.room import conflicts, free_spans


def first_free(bookings, length):
    """Return the time, as text, at which the first free span of length minutes starts, or "none"."""
    for start, stop in free_spans(bookings, length):
        return shown(start)
    return "none"


def can_book(bookings, first, second):
    """Return True if a booking from first to second conflicts with no other and lasts at least $shortest minutes."""
    long_enough = bool(free_spans([], $shortest)) and first < second
    return long_enough and not conflicts(bookings, (first, second))


def free_minutes(bookings):
    """Return how many minutes of the opening hours are in free spans of at least $shortest minutes."""
    total = 0
    for start, stop in free_spans(bookings, $shortest):
        total += stop - start
    return total
''',
    },
    calls={
        "clock.minutes": lambda rng: f"minutes({_time(rng, 0, 23)!r})",
        "clock.shown": lambda rng: f"shown({rng.randint(0, 1439)})",
        "spans.merged": lambda rng: f"merged({[tuple(sorted(rng.sample(range(20), 2))) for _ in range(4)]})",
        "room.conflicts": lambda rng: f"conflicts({_bookings(rng)}, {('09:30', _time(rng, 10))})",
        "agenda.first_free": lambda rng: f"first_free({_bookings(rng)}, {rng.choice((15, 30, 60, 120))})",
        "agenda.can_book": lambda rng: f"can_book({_bookings(rng)}, {_time(rng)!r}, {_time(rng)!r})",
        "agenda.free_minutes": lambda rng: f"free_minutes({_bookings(rng)})",
    },
    constants={"opening": (7, 8, 9), "closing": (17, 18, 20), "shortest": (15, 30, 45)},
)
