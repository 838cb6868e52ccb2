"""Families that modules are made of: one-liners and folds are combined here, the others are in ``families.toml``."""

from __future__ import annotations

import tomllib
from importlib import resources
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
_FILE: Final = tomllib.loads(resources.files(__package__).joinpath("families.toml").read_text(encoding="utf-8"))
BRANCHES: Final = tuple(Family(**fields) for fields in _FILE["branches"])
"""A few statements without a loop each."""
LOOPS: Final = tuple(Family(**fields) for fields in _FILE["loops"])
"""One loop, or two, each."""
WITH_HELPERS: Final = tuple(Family(**fields) for fields in _FILE["with_helpers"])
"""Two functions each, one of which calls the other."""
