"""Grading out of the work's reach: what is right passes, what is wrong fails, and no trick changes that."""

from __future__ import annotations

import pytest
from testkit.clock import SUITE, WORK

from agentgym.envs.code.cheats import WORKS
from agentgym.envs.code.grading import grade_calls, grade_check, grade_suite
from agentgym.envs.code.shared_pool import SandboxKind, SharedPool, shared_pool
from agentgym.envs.code.workspace import Assignment, content_key, packed, unpacked
from agentgym.errors import ConfigError, EnvError
from agentgym.sandbox import Limits

CASES = [((2,), 7), ((0,), 1), ((-1,), -2)]
RIGHT = "def f(x): return x * 3 + 1\n"


@pytest.fixture(scope="module")
def pool() -> SharedPool:
    return shared_pool(SandboxKind(backend="process", max_open=2))


@pytest.fixture(scope="module")
def hasty_pool() -> SharedPool:
    return shared_pool(SandboxKind(backend="process", max_open=1, limits=Limits(wall_s=60.0, cpu_s=1)))


@pytest.mark.parametrize(
    ("source", "num_passed"),
    [
        (RIGHT, 3),
        ("def f(x): return x * 3 + 2\n", 0),
        ("def f(x): return 7\n", 1),
        ("def f(x): return float(x * 3 + 1)\n", 0),  # equal, and of another type
        ("class I(int): pass\ndef f(x): return I(x * 3 + 1)\n", 3),  # a number is a number
        ("def f(x): print(x); return 1 / x * 0 + x * 3 + 1\n", 0),
        ("def f(x):\n    if x == 2: import os; os._exit(0)\n    return x * 3 + 1\n", 0),
    ],
)
def test_calls(pool: SharedPool, source: str, num_passed: int) -> None:
    grade = grade_calls(pool, {"solution.py": source}, "solution:f", CASES)
    assert (grade.num_passed, grade.num_tests, grade.is_collected) == (num_passed, 3, True)
    assert grade.is_success == (num_passed == 3)


@pytest.mark.parametrize(
    ("source", "note"),
    [
        ("def f(x) return\n", "SyntaxError"),
        ("def g(x): pass\n", "AttributeError"),
        ("import nothing\n", "ModuleNotFound"),
        ("import os; os._exit(0)\n", "ended"),
    ],
)
def test_what_cannot_be_loaded(pool: SharedPool, source: str, note: str) -> None:
    grade = grade_calls(pool, {"solution.py": source}, "solution:f", CASES)
    assert not grade.is_collected and not grade.is_success
    assert note in grade.note


def test_values_of_every_plain_kind(pool: SharedPool) -> None:
    values = [
        None,
        True,
        -(10**30),
        0.5,
        "é\ud7ff",
        b"\x00",
        [1, [2]],
        (1, "a"),
        {1, 2},
        frozenset("ab"),
        {"a": (1,), 2: None},
        1j,
    ]
    cases = [((value,), value) for value in values]
    assert grade_calls(pool, {"same.py": "def same(x): return x\n"}, "same:same", cases).is_success


def test_an_endless_loop_fails_what_comes_after_it(hasty_pool: SharedPool) -> None:
    source = "def f(x):\n    while x == 0: pass\n    return x * 3 + 1\n"
    grade = grade_calls(hasty_pool, {"solution.py": source}, "solution:f", CASES)
    assert (grade.num_passed, grade.num_tests, grade.is_success) == (1, 3, False)


def test_waiting_is_no_failure(hasty_pool: SharedPool) -> None:
    """Seconds by the clock beyond the limit of processor time, as on a machine that is busy with something else."""
    source = "import time\ndef f(x):\n    time.sleep(0.7)\n    return x * 3 + 1\n"
    assert grade_calls(hasty_pool, {"solution.py": source}, "solution:f", CASES).is_success


def test_check(pool: SharedPool) -> None:
    check = "def check(candidate):\n    for n in range(3):\n        assert candidate(n) == n * 3 + 1\n"
    assert grade_check(pool, {"solution.py": RIGHT}, "solution:f", check).is_success
    wrong = grade_check(pool, {"solution.py": "def f(x): return x\n"}, "solution:f", check)
    assert (wrong.is_success, wrong.note) == (False, "AssertionError")
    with pytest.raises(EnvError, match="grading did not begin"):
        grade_check(pool, {"solution.py": RIGHT}, "solution:f", "def check(:")


def test_suite(pool: SharedPool) -> None:
    grade = grade_suite(pool, {"clock.py": WORK}, {"test_clock": SUITE})
    assert (grade.num_passed, grade.num_tests, grade.note) == (13, 13, "")
    worse = grade_suite(pool, {"clock.py": WORK.replace("return a + b", "return a - b")}, {"test_clock": SUITE})
    assert (worse.num_passed, worse.num_tests) == (10, 13)
    missing = grade_suite(pool, {"clock.py": "LIMIT = 5\n"}, {"test_clock": SUITE})
    assert (missing.is_collected, missing.is_success) == (False, False)


def test_suites_and_work_in_packages(pool: SharedPool) -> None:
    work = {
        "src/shop/__init__.py": "",
        "src/shop/cart.py": "from shop.prices import price\ndef total(n): return n * price()\n",
        "src/shop/prices.py": "def price(): return 3\n",
    }
    test = (
        "import shop.cart\nfrom shop import prices\n\n"
        "def test_total():\n    assert shop.cart.total(2) == 2 * prices.price()\n"
    )
    tests = {"tests.test_cart": test}
    assert grade_suite(pool, work, tests).is_success


@pytest.mark.parametrize("name", WORKS)
def test_no_trick_scores(pool: SharedPool, name: str) -> None:
    program = WORKS[name]
    assert not grade_calls(pool, {"clock.py": program}, "clock:add", [((1, 2), 3), ((2, 2), 4)]).is_success
    check = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert abs(candidate(1, 1) - 2) < 1e-6\n"
    assert not grade_check(pool, {"clock.py": program}, "clock:add", check).is_success
    assert grade_suite(pool, {"clock.py": program}, {"test_clock": SUITE}).num_passed == 0
    assert grade_calls(pool, {"solution.py": RIGHT}, "solution:f", CASES).is_success  # the pool is none the worse


def test_the_judge_is_closed_to_the_work(pool: SharedPool) -> None:
    """Nothing of the other process can be opened; were it open, the expected value would be in its memory."""
    source = """
import os
def look():
    opened = []
    for name in ("mem", "environ", "maps", "fd/0", "fd/1", "cwd/x"):
        try:
            os.close(os.open(f"/proc/{os.getppid()}/{name}", os.O_RDONLY))
            opened.append(name)
        except PermissionError:
            pass
    return opened
"""
    check = "def check(candidate):\n    assert candidate() == []\n"
    assert grade_check(pool, {"look.py": source}, "look:look", check).is_success


def test_only_editable_files_are_work() -> None:
    given = Assignment(
        text="",
        files={"a.py": "old", "test_a.py": "tests", "gone.py": "x"},
        editable=("*.py",),
        protected=("test_*.py",),
    )
    left = {"a.py": "new", "test_a.py": "cheated", "conftest.py": "planted", "notes.txt": "mine"}
    assert given.work(left) == {"a.py": "new", "test_a.py": "tests", "conftest.py": "planted"}
    with pytest.raises(ConfigError, match="relative"):
        Assignment(text="", files={"../a": ""})


def test_a_workspace_comes_back_as_it_was(pool: SharedPool) -> None:
    files = {"a.txt": "é", "deep/er/b.py": "x = 1\n"}
    with pool.acquire() as sandbox:
        sandbox.restore(packed(files))
        first = sandbox.snapshot()
        assert unpacked(first) == files
        sandbox.exec("touch a.txt; mkdir __pycache__; echo > __pycache__/x")
        assert content_key(sandbox.snapshot()) == content_key(first)
        sandbox.exec("chmod +x a.txt")
        assert content_key(sandbox.snapshot()) != content_key(first)
