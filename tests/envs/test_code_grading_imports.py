"""The judge and the worker import nothing that lies in the workspace, whatever it is called."""

from __future__ import annotations

import sys

import pytest

from agentgym.envs.code.grading import grade_calls, grade_check, grade_suite
from agentgym.envs.code.shared_pool import SandboxKind, SharedPool, shared_pool
from agentgym.envs.code.workspace import packed

RIGHT = "def f(x): return x * 3 + 1\n"
CASES = [((2,), 7), ((0,), 1)]
NAMES = sorted(name for name in sys.stdlib_module_names if name not in ("antigravity", "this"))
FORGED = """
import os, sys
rows = b'{"begun": true}\\n{"collected": true, "num_tests": 2}\\n'
rows += b'{"test": 0, "value": 7, "passed": true}\\n{"test": 1, "value": 1, "passed": true}\\n{"done": true}\\n'
os.write(1, rows)
os._exit(0)
"""


@pytest.fixture(scope="module")
def pool() -> SharedPool:
    return shared_pool(SandboxKind(backend="process", max_open=1))


@pytest.mark.parametrize("form", ["{}.py", "{}/__init__.py"])
def test_work_named_like_the_standard_library_forges_no_verdict(pool: SharedPool, form: str) -> None:
    traps = {form.format(name): FORGED for name in NAMES}
    calls = grade_calls(pool, {**traps, "solution.py": ""}, "solution:f", CASES)
    check = "def check(candidate):\n    assert candidate(2) == 7\n"
    checked = grade_check(pool, {**traps, "solution.py": ""}, "solution:f", check)
    suite = grade_suite(pool, {**traps, "solution.py": ""}, {"test_f": "from solution import f\ndef test(): f(1)\n"})
    assert not (calls.is_success or checked.is_success or suite.is_success)


def test_modules_that_tests_import_are_not_those_of_the_work(pool: SharedPool) -> None:
    """``math.isclose`` of a file ``math.py`` would call everything close."""
    traps = {
        f"{name}.py": "def isclose(*_, **__): return True\ndef mean(_): return 7\n" for name in ("math", "statistics")
    }
    test = (
        "import math, statistics\nfrom solution import f\n\n"
        "def test_close():\n    assert math.isclose(f(2), 7)\n\n"
        "def test_mean():\n    assert statistics.mean([f(2)]) == 7\n"
    )
    wrong = grade_suite(pool, {**traps, "solution.py": "def f(x): return 0\n"}, {"test_f": test})
    assert (wrong.num_passed, wrong.num_tests) == (0, 2)
    right = grade_suite(pool, {**traps, "solution.py": RIGHT}, {"test_f": test})
    assert (right.num_passed, right.num_tests) == (2, 2)


def test_files_named_like_the_standard_library_end_no_sandbox(pool: SharedPool) -> None:
    traps = packed({f"{name}.py": "raise SystemExit('imported')\n" for name in NAMES})
    with pool.acquire() as sandbox:
        for _ in range(2):
            sandbox.restore(traps)
            assert len(sandbox.list()) == len(NAMES)
            assert sandbox.snapshot().tar
            sandbox.reset()
            assert sandbox.list() == ()
        sandbox.write("work.py", "ANSWER = 42\n")
        assert sandbox.run_python("import work; print(work.ANSWER)").stdout == "42\n"  # as `python3 -c` would
