"""Families of short functions: one-liners, functions with a branch, and folds over a list."""

from __future__ import annotations

from typing import Final

from agentgym.envs.code.function_families import Family

_SMALL: Final = range(2, 8)
_LIMITS: Final = range(3, 13)
_LISTS: Final = ("numbers", "values", "items", "scores")


def _one_liner(doc: str, expression: str, *, first: str, second: str = "") -> Family:
    parameters = f"{first}, {second}" if second else first
    body = f'    """Return {doc}."""\n    return {expression}\n'
    inputs = ("int", "int") if second else ("int",)
    return Family(names=("f", "g", "h"), template=f"def $name({parameters}):\n{body}", inputs=inputs,
                  constants={} if second else {"k": _SMALL})  # fmt: skip


ONE_LINERS: Final = (
    *(
        _one_liner(doc.format(a, b), text.format(a, b), first=a, second=b)
        for a, b in (("a", "b"), ("x", "y"), ("m", "n"))
        for doc, text in (
            ("{0} plus {1}", "{0} + {1}"),
            ("{0} minus {1}", "{0} - {1}"),
            ("{1} minus {0}", "{1} - {0}"),
            ("{0} times {1}", "{0} * {1}"),
            ("the smaller of {0} and {1}", "min({0}, {1})"),
            ("the larger of {0} and {1}", "max({0}, {1})"),
            ("True if {0} is less than {1}", "{0} < {1}"),
            ("True if {0} is at least {1}", "{0} >= {1}"),
            ("True if {0} equals {1}", "{0} == {1}"),
        )
    ),
    *(
        _one_liner(doc.format(a), text.format(a), first=a)
        for a in ("a", "x", "n")
        for doc, text in (
            ("{0} plus $k", "{0} + $k"),
            ("{0} minus $k", "{0} - $k"),
            ("{0} times $k", "{0} * $k"),
            ("True if {0} is above $k", "{0} > $k"),
            ("True if {0} is at most $k", "{0} <= $k"),
            ("{0} times $k plus 1", "{0} * $k + 1"),
        )
    ),
)
"""A docstring and one expression each."""

BRANCHES: Final = (
    Family(
        names=("clamp", "limited", "bounded"),
        template='''
def $name(value, low, high):
    """Return low for a value below low, else high for a value above high, else the value."""
    if value < low:
        return low
    if value > high:
        return high
    return value
''',
        inputs=("int", "int", "int"),
    ),
    Family(
        names=("fare", "postage", "fee"),
        template='''
def $name(weight):
    """Return $a up to a weight of $k, $b above that up to $k times 2, and $c for everything above."""
    if weight <= $k:
        return $a
    elif weight <= $k * 2:
        return $b
    else:
        return $c
''',
        inputs=("natural",),
        constants={"a": range(2, 5), "b": range(6, 9), "c": range(10, 15), "k": _LIMITS},
    ),
    Family(
        names=("sign_of", "direction", "trend"),
        template='''
def $name(before, after):
    """Return 1 if after is above before, -1 if it is below, and 0 if they are equal."""
    if after > before:
        return 1
    if after < before:
        return -1
    return 0
''',
        inputs=("small", "small"),
    ),
    Family(
        names=("label", "grade", "verdict"),
        template='''
def $name(score):
    """Return 'high' for a score of at least $k, 'none' for a score below 1, and 'low' for what is between."""
    if score >= $k:
        return "high"
    if score < 1:
        return "none"
    return "low"
''',
        inputs=("int",),
        constants={"k": _LIMITS},
    ),
    Family(
        names=("discounted", "net_price", "reduced"),
        template='''
def $name(price, count):
    """Return price times count, less $d for each of them if there are at least $k."""
    total = price * count
    if count >= $k:
        total -= $d * count
    return total
''',
        inputs=("natural", "natural"),
        constants={"k": _LIMITS, "d": range(1, 4)},
    ),
    Family(
        names=("ticket", "entry_price", "admission"),
        template='''
def $name(age, is_member):
    """Return $a, or $b from an age of $k on; those who are not members pay $d more."""
    price = $a
    if age >= $k:
        price = $b
    if not is_member:
        price += $d
    return price
''',
        inputs=("natural", "flag"),
        constants={"a": range(5, 8), "b": range(8, 12), "k": _LIMITS, "d": range(2, 5)},
    ),
    Family(
        names=("clock", "duration", "as_time"),
        template='''
def $name(seconds):
    """Return the duration as a tuple of hours, minutes and seconds; minutes and seconds are below 60."""
    minutes = seconds // 60
    hours = minutes // 60
    return (hours, minutes % 60, seconds % 60)
''',
        inputs=("seconds",),
    ),
)
"""A few statements without a loop each."""


def _fold(names: tuple[str, ...], doc: str, start: str, step: str) -> tuple[Family, ...]:
    """Folds over a list: each takes what a condition picks out."""
    conditions = (
        ("at least $k", "{} >= $k"),
        ("below $k", "{} < $k"),
        ("even", "{} % 2 == 0"),
        ("not a multiple of $k", "{} % $k != 0"),
        ("above $k and odd", "{} > $k and {} % 2 == 1"),
    )
    return tuple(
        Family(
            names=names,
            template=f'''
def $name({items}):
    """Return {doc.format(items=items)} that are {says}."""
    result = {start}
    for item in {items}:
        if {condition.format("item", "item")}:
            {step}
    return result
''',
            inputs=("ints",),
            constants={"k": _LIMITS},
        )
        for says, condition in conditions
        for items in _LISTS
    )


FOLDS: Final = (
    *_fold(("total_of", "sum_of", "amount"), "the sum of all {items}", "0", "result += item"),
    *_fold(("count_of", "how_many", "tally"), "the number of {items}", "0", "result += 1"),
    *_fold(("squares_of", "squared", "powers"), "the sum of the squares of all {items}", "0", "result += item * item"),
    *_fold(("chosen", "picked", "selected"), "a list of all {items}, in their order,", "[]", "result.append(item)"),
    *_fold(("shifted", "raised", "moved"), "a list of each plus $k of all {items}", "[]", "result.append(item + $k)"),
)
