"""The generator of functions to write: a description, a reference solution, and inputs.

========  ==========================================================================================
level     functions
========  ==========================================================================================
0         one or two steps of arithmetic on a whole number: few enough words for the tiniest model
1         one or two steps on a number, a text or a list
2         three or four such steps, which may go from one kind of value to another
3         a condition on the argument, with other steps on either side
4         a loop over a list with a running total and a condition on each item
========  ==========================================================================================

No function is in two splits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Kind = Literal["number", "text", "list"]
LEVELS = (0, 1, 2, 3, 4)
NAME = "f"
NUM_EXAMPLES, NUM_HIDDEN = 3, 8
_SAYS: dict[Kind, str] = {"number": "a whole number", "text": "a text", "list": "a list of whole numbers"}
_SHARES = {"train": range(0, 8), "valid": range(8, 9), "test": range(9, 10)}  # tenths of all functions, by split
_Drawn = tuple[Kind, str, str]
"""Kind of the argument, description, and source."""
_LETTERS = "abcdefg"
_MOST_TRIES = 200


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on a value."""

    words: str
    """Description in the imperative, with ``{x}`` for the value."""
    code: str
    """Expression. ``{x}`` is parenthesised if it is a part of a larger expression, ``{bare}`` never."""
    into: Kind
    group: str
    """Group of the step. Two steps of a group never follow each other, since they could be one step."""
    is_tight: bool = False
    """True if the code needs no parentheses inside a larger expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function to write.

    Example:
        >>> function = make_function(7, "train", level=0)
        >>> print(function.words)
        x is a whole number. Multiply x by 7, then subtract 6 from the result.
        >>> function.source, function.run(1)
        ('def f(x): return (x * 7) - 6', 1)
    """

    words: str
    source: str
    """Reference solution."""
    run: Callable[[object], object]
    examples: tuple[object, ...]
    """Arguments to show with the function's results."""
    hidden: tuple[object, ...]
    """Arguments for grading."""


def make_function(seed: int, split: str, level: int) -> Function:
    """Make the function of a seed. Draws repeat until the function belongs to the split and is not trivial."""
    rng = np.random.default_rng((seed, level))
    for _ in range(_MOST_TRIES):
        kind, words, source = (_straight, _straight, _straight, _branching, _looping)[level](rng, level)
        tenth = hashlib.blake2b(source.encode(), digest_size=4).digest()[0] % 10
        if tenth not in _SHARES[split]:
            continue
        inputs, run = _inputs(rng, kind), _compiled(source)
        values = [run(value) for value in inputs]
        if len({repr(value) for value in values}) >= 4 and values != inputs:  # neither a constant nor the identity
            return Function(
                words=f"x is {_SAYS[kind]}. {words}",
                source=source,
                run=run,
                examples=tuple(inputs[:NUM_EXAMPLES]),
                hidden=tuple(inputs[NUM_EXAMPLES:]),
            )
    raise AssertionError(f"no function of level {level} in {_MOST_TRIES} draws")


# ------------------------------------------------------------------------------------------------------ the levels


def _straight(rng: np.random.Generator, level: int) -> _Drawn:
    kind: Kind = "number" if level == 0 else ("number", "text", "list")[int(rng.integers(3))]
    steps = _steps(rng, kind, int(rng.integers(1, 3)) if level < 2 else int(rng.integers(3, 5)), level)
    return kind, f"{_sentence(steps, 'x')}.", f"def {NAME}(x): return {_expression(steps, 'x')}"


def _branching(rng: np.random.Generator, level: int) -> _Drawn:
    kind: Kind = ("number", "list")[int(rng.integers(2))]
    words, code = _condition(rng, kind)
    one, other = (_steps(rng, kind, int(rng.integers(1, 3)), level) for _ in range(2))
    source = (
        f"def {NAME}(x):\n    if {code.format(x='x')}:\n        return {_expression(one, 'x')}\n"
        f"    return {_expression(other, 'x')}\n"
    )
    then, otherwise = (_sentence(steps, "x", is_first=False) for steps in (one, other))
    return kind, f"If {words.format(x='x')}: {then}. Otherwise: {otherwise}.", source


def _looping(rng: np.random.Generator, level: int) -> _Drawn:
    start = int(rng.integers(0, 10))
    words, code = _condition(rng, "number")
    one, other = (_steps(rng, "number", int(rng.integers(1, 3)), 0) for _ in range(2))
    source = (
        f"def {NAME}(x):\n    total = {start}\n    for item in x:\n        if {code.format(x='item')}:\n"
        f"            total = total + {_grouped(one, 'item')}\n        else:\n"
        f"            total = {_expression(other, 'total')}\n    return total\n"
    )
    text = (
        f"Begin with a total of {start}. For each item of x in turn: if {words.format(x='item')}, "
        f"{_sentence(one, 'item', is_first=False)} and add the result to the total; "
        f"otherwise the new total is the old one after this: {_sentence(other, 'the total', is_first=False)}. "
        "Give the total."
    )
    return "list", text, source


# ------------------------------------------------------------------------------------------------ steps and values


def _steps(rng: np.random.Generator, kind: Kind, num_steps: int, level: int) -> list[Step]:
    steps: list[Step] = []
    while len(steps) < num_steps:
        now = steps[-1].into if steps else kind
        choices = [step for step in _possible(rng, now, level) if not steps or step.group != steps[-1].group]
        steps.append(choices[int(rng.integers(len(choices)))])
    return steps


def _possible(rng: np.random.Generator, kind: Kind, level: int) -> list[Step]:
    """Return one step of each sort with random numbers."""
    n, factor = int(rng.integers(1, 10)), int(rng.integers(2, 10))
    if kind == "number":
        easy = [
            Step(f"add {n} to {{x}}", f"{{x}} + {n}", "number", "sum"),
            Step(f"subtract {n} from {{x}}", f"{{x}} - {n}", "number", "sum"),
            Step(f"multiply {{x}} by {factor}", f"{{x}} * {factor}", "number", "product"),
        ]
        if level == 0:
            return easy
        return [
            *easy,
            Step("square {x}", "{x} ** 2", "number", "square"),
            Step("negate {x}", "-{x}", "number", "sign"),
            Step("take the absolute value of {x}", "abs({bare})", "number", "sign", True),
            Step(f"take the remainder of {{x}} divided by {factor}", f"{{x}} % {factor}", "number", "rest"),
            Step("write {x} as a text", "str({bare})", "text", "text", True),
        ]
    if kind == "text":
        letter = _LETTERS[int(rng.integers(len(_LETTERS)))]
        return [
            Step("reverse {x}", "{x}[::-1]", "text", "reverse", True),
            Step("turn {x} into capital letters", "{x}.upper()", "text", "case", True),
            Step(f"repeat {{x}} {factor} times", f"{{x}} * {factor}", "text", "repeat"),
            Step(f"put {letter!r} at the end of {{x}}", f"{{x}} + {letter!r}", "text", "end"),
            Step(f"remove every {letter!r} from {{x}}", f"{{x}}.replace({letter!r}, '')", "text", "replace", True),
            Step("take the length of {x}", "len({bare})", "number", "length", True),
            Step(f"count how often {letter!r} is in {{x}}", f"{{x}}.count({letter!r})", "number", "count", True),
        ]
    return _of_lists(n, factor)


def _of_lists(n: int, factor: int) -> list[Step]:
    return [
        Step("reverse {x}", "{x}[::-1]", "list", "order", True),
        Step("sort {x}", "sorted({bare})", "list", "order", True),
        Step(
            f"multiply each item of {{x}} by {factor}",
            f"[item * {factor} for item in {{bare}}]",
            "list",
            "product",
            True,
        ),
        Step(f"add {n} to each item of {{x}}", f"[item + {n} for item in {{bare}}]", "list", "shift", True),
        Step(
            f"keep the items of {{x}} above {n}", f"[item for item in {{bare}} if item > {n}]", "list", "filter", True
        ),
        Step("keep the even items of {x}", "[item for item in {bare} if item % 2 == 0]", "list", "parity", True),
        Step("add up {x}", "sum({bare})", "number", "total", True),
        Step("take the length of {x}", "len({bare})", "number", "length", True),
        Step(
            "take the largest item of {x}, or 0 if there is none", "max({bare}, default=0)", "number", "largest", True
        ),
    ]


def _condition(rng: np.random.Generator, kind: Kind) -> tuple[str, str]:
    """Return a condition as a description and as code."""
    n, divisor = int(rng.integers(-3, 6)), int(rng.integers(2, 5))
    if kind == "number":
        choices = [
            (f"{{x}} is above {n}", f"{{x}} > {n}"),
            (f"{{x}} can be divided by {divisor}", f"{{x}} % {divisor} == 0"),
        ]
    else:
        choices = [
            (f"{{x}} has more than {divisor} items", f"len({{x}}) > {divisor}"),
            (f"{n} is in {{x}}", f"{n} in {{x}}"),
            (f"the sum of {{x}} is above {n}", f"sum({{x}}) > {n}"),
        ]
    return choices[int(rng.integers(len(choices)))]


def _inputs(rng: np.random.Generator, kind: Kind) -> list[object]:
    """Return distinct arguments, for examples and for grading."""
    found: list[object] = []
    while len(found) < NUM_EXAMPLES + NUM_HIDDEN:
        value: Any = int(rng.integers(-20, 21))
        if kind == "list":
            value = [int(item) for item in rng.integers(-9, 10, size=int(rng.integers(0, 8)))]
        elif kind == "text":
            value = "".join(_LETTERS[int(at)] for at in rng.integers(len(_LETTERS), size=int(rng.integers(0, 8))))
        if value not in found:
            found.append(value)
    return found


# ------------------------------------------------------------------------------------------- text and code


def _compiled(source: str) -> Callable[[object], object]:
    """Compile the reference solution, whose results define the expected values."""
    names: dict[str, Any] = {}
    exec(source, names)
    run: Callable[[Any], Any] = names[NAME]
    return run


def _expression(steps: Sequence[Step], name: str) -> str:
    code, is_tight = name, True
    for step in steps:
        code, is_tight = step.code.format(x=code if is_tight else f"({code})", bare=code), step.is_tight
    return code


def _grouped(steps: Sequence[Step], name: str) -> str:
    code = _expression(steps, name)
    return code if steps[-1].is_tight else f"({code})"


def _sentence(steps: Sequence[Step], name: str, *, is_first: bool = True) -> str:
    pieces = [step.words.format(x=name if at == 0 else "the result") for at, step in enumerate(steps)]
    text = ", then ".join(pieces)
    return text[0].upper() + text[1:] if is_first else text
