"""Tests that cannot run against work in another process are refused, and broken tests give no grade."""

from __future__ import annotations

import pytest

from agentgym.envs.code.grading import grade_suite
from agentgym.envs.code.shared_pool import SandboxKind, shared_pool
from agentgym.errors import EnvError, UsageError

WORK = {
    "work.py": "import time\ndef hello(): print('hello')\nasync def wait(): return 1\ndef now(): return time.time()\n"
}
REFUSED = {
    "printed text": (
        "import contextlib, io, work\ndef test():\n    with contextlib.redirect_stdout(io.StringIO()) as out:\n"
        "        work.hello()\n    assert out.getvalue() == 'hello\\n'\n",
        "line 3: .*capture what the work prints",
    ),
    "a coroutine": ("import asyncio, work\ndef test():\n    assert asyncio.run(work.wait()) == 1\n", "line 3: .*await"),
    "an asynchronous test": ("import work\nasync def test():\n    assert await work.wait() == 2\n", "line 2: .*await"),
    "a patched module": (
        "from unittest.mock import patch\nimport work\ndef test():\n    with patch('work.time.time', lambda: 5):\n"
        "        assert work.now() == 5\n",
        r"line 4: .*patch a module inside of the work \(work\.time\.time\)",
    ),
    "a patched attribute": (
        "from unittest.mock import patch\nimport work\ndef test():\n"
        "    with patch.object(work.time, 'time', lambda: 5):\n"
        "        assert work.now() == 5\n",
        r"line 4: .*patch a module inside of the work \(work\.time\.\*\)",
    ),
    "a patched standard library": (
        "from unittest.mock import patch\nimport work\n@patch('time.time', lambda: 5)\ndef test():\n"
        "    assert work.now() == 5\n",
        r"line 3: .*a module that the work has in its own process \(time\.time\)",
    ),
    "an object of the standard library": (
        "import time, work\nfrom unittest import mock\ndef test():\n"
        "    with mock.patch.object(time, 'time', lambda: 5):\n"
        "        assert work.now() == 5\n",
        r"line 4: .*in its own process \(time\.\*\)",
    ),
    "an assigned standard output": (
        "import io, sys, work\ndef test():\n    sys.stdout = out = io.StringIO()\n    work.hello()\n"
        "    assert out.getvalue() == 'hello\\n'\n",
        "line 3: .*capture what the work prints",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_constructs_that_cannot_work_are_refused_by_line(name: str) -> None:
    source, words = REFUSED[name]
    with pytest.raises(UsageError, match=words):
        grade_suite(shared_pool(SandboxKind(backend="process")), WORK, {"test_work": source})


def test_a_patch_that_serves_the_tests_alone_is_run() -> None:
    source = (
        "import io, work\nfrom unittest import mock\n@mock.patch('io.StringIO', wraps=io.StringIO)\n"
        "def test(made):\n    assert io.StringIO('a').read() == 'a' and made.called and work.now() > 0\n"
    )
    assert grade_suite(shared_pool(SandboxKind(backend="process")), WORK, {"test_work": source}).is_success


@pytest.mark.parametrize(
    "source",
    [
        "import numpy_of_another_image\nimport work\ndef test(): pass\n",
        "import work\ndef test():\n    import numpy_of_another_image\n",
    ],
)
def test_tests_that_import_what_is_not_there_are_broken(source: str) -> None:
    pool = shared_pool(SandboxKind(backend="process"))
    with pytest.raises(EnvError, match="the tests are broken: No module named 'numpy_of_another_image'"):
        grade_suite(pool, WORK, {"test_work": source}, ("work",))


@pytest.mark.parametrize(
    "work",
    [
        {"work.py": "import numpy_of_another_image\n"},
        {"work.py": "def hello(): import numpy_of_another_image\n"},
        {"work.py": "def hello(): raise ModuleNotFoundError('x', name='x')\n"},
        {"work.py": ""},
        {"other.py": ""},
    ],
)
def test_work_cannot_make_its_tests_look_broken(work: dict[str, str]) -> None:
    pool = shared_pool(SandboxKind(backend="process"))
    source = "def test():\n    from work import hello\n    hello()\n"
    assert not grade_suite(pool, work, {"test_work": source}, ("work",)).is_success
