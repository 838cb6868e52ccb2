"""Families of small functions for generated modules, with inputs that reveal wrong results.

A family is a template with placeholders for constants. Its functions have a complete docstring, from which a bug can be
repaired, and only ``for`` loops (see :mod:`agentgym.envs.code.trusted_code`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from string import Template
from typing import Final

from agentgym.canonical import packaged

_FILE: Final = packaged(__package__, "families.toml")
_WORDS: Final[Sequence[str]] = _FILE["words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of functions that differ in their constants.

    ``$name`` is replaced by the function's name, every other ``$word`` by one of ``constants``. ``inputs`` names the
    kinds of arguments (:data:`INPUTS`) of the last function in the template. Functions above it are its helpers.
    """

    names: Sequence[str]
    template: str
    inputs: Sequence[str]
    constants: Mapping[str, Sequence[int | str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of a generated module, with its helpers.

    Example:
        >>> add = Family(names=("add",), template=\"\"\"
        ... def $name(a, b):
        ...     return a + b
        ... \"\"\", inputs=("int", "int"))
        >>> drawn = draw(add, random.Random(0))
        >>> print(drawn.source)
        def add(a, b):
            return a + b
        >>> drawn.calls[0].startswith("add(")
        True
    """

    name: str
    source: str
    """Source without empty lines at the start and the end."""
    calls: Sequence[str]
    """Distinct expressions that call it, including empty and extreme inputs if there are any."""


_NUM_CALLS = 14
_MOST_DRAWS = 60  # stop even if there are fewer distinct inputs than calls


def draw(family: Family, rng: random.Random, taken: Sequence[str] = ()) -> Function:
    """Draw a function of a family, with a name that is not in ``taken`` unless all are."""
    free = [name for name in family.names if name not in taken]
    name = rng.choice(free or list(family.names))
    constants = {key: rng.choice(list(values)) for key, values in family.constants.items()}
    source = Template(family.template).substitute(constants, name=name).strip("\n")
    near = sorted({value + step for value in constants.values() if isinstance(value, int) for step in (-1, 0, 1)})
    calls: dict[str, None] = {}
    for number in range(_MOST_DRAWS):
        arguments = ", ".join(INPUTS[kind](rng, near, number) for kind in family.inputs)
        calls[f"{name}({arguments})"] = None
        if len(calls) == _NUM_CALLS:
            break
    return Function(name=name, source=source, calls=tuple(calls))


# ------------------------------------------------------------------------------------------------------- inputs

_Input = Callable[[random.Random, Sequence[int], int], str]
"""A function that returns an argument's source from a generator, numbers near the function's constants, and the number
of earlier inputs."""


def _number(rng: random.Random, near: Sequence[int]) -> int:
    return rng.choice(near) if near and rng.random() < 0.5 else rng.randint(-9, 20)


def _ints(rng: random.Random, near: Sequence[int], number: int) -> str:
    return str([_number(rng, near) for _ in range(number if number < 3 else rng.randint(2, 8))])


def _matrix(rng: random.Random, near: Sequence[int], number: int) -> str:
    num_columns = rng.randint(1, 3)
    return str([[_number(rng, near) for _ in range(num_columns)] for _ in range(1 + number % 3)])


def _brackets(rng: random.Random, _near: Sequence[int], number: int) -> str:
    depth, text = 0, ""
    for _ in range(number):
        if depth and rng.random() < 0.45:
            depth, text = depth - 1, text + ")"
        else:
            depth, text = depth + 1, text + "("
    return repr(text + ")" * (depth if rng.random() < 0.7 else 0))


INPUTS: Final[Mapping[str, _Input]] = {
    "int": lambda rng, near, _: str(_number(rng, near)),
    "natural": lambda rng, near, number: str(abs(_number(rng, near)) if number else 0),
    "flag": lambda rng, _near, _: str(rng.random() < 0.5),
    "small": lambda rng, _near, _: str(rng.randint(1, 4)),
    "seconds": lambda rng, _near, number: str(
        (59, 60, 3599, 3600, 3661, 0)[number] if number < 6 else rng.randint(0, 100_000)
    ),
    "ints": _ints,
    "some_ints": lambda rng, near, number: _ints(rng, near, number + 1),
    "repeats": lambda rng, _near, number: str(
        [rng.randint(1, 3) for _ in range(number if number < 3 else rng.randint(2, 8))]
    ),
    "matrix": _matrix,
    "word": lambda rng, _near, number: repr(rng.choice(_WORDS) if number else ""),
    "text": lambda rng, _near, number: repr(
        " ".join(rng.choice(_WORDS) for _ in range(number if number < 3 else rng.randint(2, 5)))
    ),
    "letter": lambda rng, _near, _: repr(rng.choice("aeomnt")),
    "brackets": _brackets,
}
"""Kinds of arguments by name."""


# ------- families of functions: one-liners and folds are combined here, the others are in ``families.toml``

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
"""Functions of one expression."""


def _fold(names: tuple[str, ...], doc: str, start: str, step: str) -> tuple[Family, ...]:
    """Return folds over a list, each over the items that fulfil a condition."""
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
BRANCHES: Final = tuple(Family(**fields) for fields in _FILE["branches"])
"""Functions of a few statements without a loop."""
LOOPS: Final = tuple(Family(**fields) for fields in _FILE["loops"])
"""Functions with one or two loops."""
WITH_HELPERS: Final = tuple(Family(**fields) for fields in _FILE["with_helpers"])
"""Pairs of functions, one of which calls the other."""
