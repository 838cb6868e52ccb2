"""The generator of problems whose answer is one whole number and that need more than mental arithmetic.

========  =====================================================================================
level     problems
========  =====================================================================================
0         one product, sum or power of large numbers, written as Python writes it
1         the same in words, with two or three operations
2         number theory: divisors, remainders of powers, primes, digits
3         small stories whose answer takes a loop or a search
========  =====================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

LEVELS = (0, 1, 2, 3)
_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn")
_GOODS = ("pens", "books", "lamps", "cups", "maps")


@dataclass(frozen=True, slots=True)
class MathProblem:
    """A question, the answer, and code that prints it.

    Example:
        >>> problem = make_problem(3, 0)
        >>> print(problem.question, "->", problem.answer)
        What is 72714 * 57982 - 41625? -> 4216061523
    """

    question: str
    code: str
    answer: int


def make_problem(seed: int, level: int) -> MathProblem:
    """Make the problem of a seed."""
    rng = np.random.default_rng((seed, level, 1))
    makers = _MAKERS[level]
    return makers[int(rng.integers(len(makers)))](rng)


def _between(rng: np.random.Generator, low: int, high: int) -> int:
    return int(rng.integers(low, high + 1))


# --------------------------------------------------------------------------------------------- level 0: expressions


def _product(rng: np.random.Generator) -> MathProblem:
    a, b = _between(rng, 10_000, 99_999), _between(rng, 10_000, 99_999)
    return _expression(f"{a} * {b}", a * b)


def _mixed(rng: np.random.Generator) -> MathProblem:
    a, b, c = (_between(rng, 1_000, 99_999) for _ in range(3))
    return _expression(f"{a} * {b} - {c}", a * b - c)


def _power(rng: np.random.Generator) -> MathProblem:
    a, b = _between(rng, 3, 29), _between(rng, 7, 12)
    return _expression(f"{a} ** {b}", a**b)


def _rest(rng: np.random.Generator) -> MathProblem:
    a, b = _between(rng, 10**8, 10**9), _between(rng, 1_000, 9_999)
    return _expression(f"{a} % {b}", a % b)


def _expression(text: str, answer: int) -> MathProblem:
    return MathProblem(f"What is {text}?", text, answer)


# ------------------------------------------------------------------------------------------------- level 1: in words


def _sum_of_squares(rng: np.random.Generator) -> MathProblem:
    a, b = _between(rng, 1_000, 9_999), _between(rng, 1_000, 9_999)
    return MathProblem(f"What is the sum of the squares of {a} and {b}?", f"{a} ** 2 + {b} ** 2", a**2 + b**2)


def _times_the_sum(rng: np.random.Generator) -> MathProblem:
    a, b, c = (_between(rng, 1_000, 99_999) for _ in range(3))
    return MathProblem(f"Add {a} to {b} and multiply the result by {c}.", f"({a} + {b}) * {c}", (a + b) * c)


def _quotient(rng: np.random.Generator) -> MathProblem:
    a, b = _between(rng, 10**8, 10**9), _between(rng, 100, 9_999)
    return MathProblem(f"How many times does {b} go into {a} as a whole?", f"{a} // {b}", a // b)


# --------------------------------------------------------------------------------------------- level 2: number theory


def _common_divisor(rng: np.random.Generator) -> MathProblem:
    shared = _between(rng, 12, 999)
    a, b = shared * _between(rng, 100, 9_999), shared * _between(rng, 100, 9_999)
    return MathProblem(
        f"What is the greatest common divisor of {a} and {b}?", f"import math\nmath.gcd({a}, {b})", math.gcd(a, b)
    )


def _num_divisors(rng: np.random.Generator) -> MathProblem:
    a = _between(rng, 1_000, 99_999)
    code = f"sum({a} % d == 0 for d in range(1, {a} + 1))"
    return MathProblem(f"How many positive divisors does {a} have?", code, _divisors(a))


def _power_rest(rng: np.random.Generator) -> MathProblem:
    a, b, m = _between(rng, 100, 999), _between(rng, 1_000, 99_999), _between(rng, 1_000, 9_999)
    return MathProblem(
        f"What is the remainder of {a} to the power of {b}, divided by {m}?", f"pow({a}, {b}, {m})", pow(a, b, m)
    )


def _digit_sum(rng: np.random.Generator) -> MathProblem:
    a, b = _between(rng, 2, 9), _between(rng, 50, 300)
    code = f"sum(int(digit) for digit in str({a} ** {b}))"
    question = f"What is the sum of the decimal digits of {a} to the power of {b}?"
    return MathProblem(question, code, sum(int(digit) for digit in str(a**b)))


def _next_prime(rng: np.random.Generator) -> MathProblem:
    a = _between(rng, 1_000, 99_999)
    code = f"n = {a} + 1\nwhile any(n % d == 0 for d in range(2, int(n ** 0.5) + 1)):\n    n += 1\nn"
    answer = a + 1
    while _divisors(answer) != 2:
        answer += 1
    return MathProblem(f"What is the smallest prime above {a}?", code, answer)


def _divisors(number: int) -> int:
    root = math.isqrt(number)
    return sum(2 for d in range(1, root + 1) if number % d == 0) - (root * root == number)


# --------------------------------------------------------------------------------------------------- level 3: stories


def _shop(rng: np.random.Generator) -> MathProblem:
    name, other = (str(word) for word in rng.choice(_NAMES, 2, replace=False))
    first, second = (str(word) for word in rng.choice(_GOODS, 2, replace=False))
    a, b, p, q = _between(rng, 120, 980), _between(rng, 120, 980), _between(rng, 13, 97), _between(rng, 13, 97)
    share = _between(rng, 3, 9)
    question = (
        f"{name} sells {a} {first} at {p} coins each and {b} {second} at {q} coins each, and shares the money with "
        f"{other} and others, {share} people in all, in equal whole coins. How many coins does {other} get?"
    )
    return MathProblem(question, f"({a} * {p} + {b} * {q}) // {share}", (a * p + b * q) // share)


def _savings(rng: np.random.Generator) -> MathProblem:
    name = _NAMES[_between(rng, 0, len(_NAMES) - 1)]
    start, more, goal = _between(rng, 10, 99), _between(rng, 3, 30), _between(rng, 20_000, 900_000)
    question = (
        f"{name} saves {start} coins in the first week, and in each week {more} coins more than in the week before. "
        f"After how many weeks has {name} at least {goal} coins?"
    )
    code = (
        f"total, saved, weeks = 0, {start}, 0\nwhile total < {goal}:\n"
        f"    total += saved\n    saved += {more}\n    weeks += 1\nweeks"
    )
    weeks = total = 0
    while total < goal:
        total += start + more * weeks
        weeks += 1
    return MathProblem(question, code, weeks)


def _count_multiples(rng: np.random.Generator) -> MathProblem:
    limit, a, b = _between(rng, 10_000, 99_999), _between(rng, 3, 9), _between(rng, 11, 19)
    question = f"How many whole numbers from 1 to {limit} can be divided by {a} or by {b}, but not by both?"
    code = f"sum((n % {a} == 0) != (n % {b} == 0) for n in range(1, {limit} + 1))"
    both = limit // math.lcm(a, b)
    return MathProblem(question, code, limit // a + limit // b - 2 * both)


_MAKERS: tuple[tuple[Callable[[np.random.Generator], MathProblem], ...], ...] = (
    (_product, _mixed, _power, _rest),
    (_sum_of_squares, _times_the_sum, _quotient),
    (_common_divisor, _num_divisors, _power_rest, _digit_sum, _next_prime),
    (_shop, _savings, _count_multiples),
)
