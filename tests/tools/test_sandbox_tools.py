"""Tools that work in a sandbox: what they say, what they refuse, what a session remembers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from testkit.skips import KILLED_FROM_OUTSIDE

from agentgym.errors import SandboxDeadError, ToolError
from agentgym.sandbox import Sandbox
from agentgym.sandboxes.process import ProcessSandbox
from agentgym.tool import tools_of
from agentgym.tools.files import EditFileTool, ReadFileTool, WriteFileTool
from agentgym.tools.in_sandbox import cut_middle
from agentgym.tools.python import SESSION_FILE, PythonOnceTool, PythonTool
from agentgym.tools.shell import BashTool
from agentgym.tools.testing import RunTestsTool


class Tools(PythonTool, BashTool, ReadFileTool, WriteFileTool, EditFileTool, RunTestsTool):
    """All of them."""

    test_command = "echo checked; exit 3"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with ProcessSandbox() as opened:
        yield opened


@pytest.fixture
def tools(sandbox: Sandbox) -> Tools:
    sandbox.reset()
    made = Tools()
    made.sandbox = sandbox
    return made


def test_they_are_found_by_name() -> None:
    assert sorted(tools_of(Tools)) == ["bash", "edit_file", "python", "read_file", "run_tests", "write_file"]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["x = 20", "x + 1"], "21"),
        (["print('a')\n'b'"], "a\n'b'"),
        (["import math", "math.floor(2.5)"], "2"),
        (["from math import floor as down", "down(2.5)"], "2"),
        (["from math import *", "floor(2.5)"], "2"),
        (["base = 3\ndef add(a, b=base):\n    return a + b", "add(1)"], "4"),
        (["def one():\n    return 1\ndef two():\n    return one() + 1", "two()"], "2"),
        (["class P:\n    v = 3\np = P()\nq = p", "p is q, p.v, type(p).__name__"], "(True, 3, 'P')"),
        (["double = lambda v: v * 2", "double(4)"], "8"),
        (["import functools\n@functools.cache\ndef sq(n):\n    return n * n", "sq(3)"], "9"),
        (["f = 1", "def f():\n    return 2", "f()"], "2"),
        (["def f():\n    return 2", "f = 1", "f"], "1"),
        (["x = [1]", "x.append(2)", "x"], "[1, 2]"),
        (["x = 1", "1 / 0", "x"], "1"),
        (["x = 1\nraise ValueError", "x"], "1"),
        (["x = 1", "import os\nos._exit(3)", "x"], "1"),
    ],
)  # fmt: skip
def test_a_session_remembers(tools: Tools, cells: list[str], said: str) -> None:
    assert [tools.python(cell) for cell in cells][-1] == said


def test_a_session_says_what_it_cannot_remember(tools: Tools) -> None:
    assert "not kept for the next call: steps" in tools.python("steps = (i for i in range(3))")
    assert "NameError" in tools.python("steps")


def test_a_session_without_variables_leaves_no_file(tools: Tools) -> None:
    tools.python("x = 1")
    assert SESSION_FILE in {info.path for info in tools.sandbox.list()}
    tools.python("del x")
    assert tools.sandbox.list() == ()


def test_a_traceback_shows_the_agents_lines_alone(tools: Tools) -> None:
    said = tools.python("def f():\n    return 1 / 0\nf()")
    assert '"<cell>", line 2, in f\n    return 1 / 0' in said
    assert said.endswith("ZeroDivisionError: division by zero")
    assert "cell.py" not in said and "run_cell" not in said


def test_without_a_session_each_call_begins_anew(sandbox: Sandbox) -> None:
    once = PythonOnceTool()
    once.sandbox = sandbox
    sandbox.reset()
    assert once.python("x = 1") == "[no output]"
    assert "NameError" in once.python("x")
    assert sandbox.list() == ()


def test_a_call_that_takes_too_long_is_an_error_for_the_model(tools: Tools) -> None:
    tools.tool_timeout_s = 2.0
    tools.python("x = 1")
    with pytest.raises(ToolError, match=r"\[killed: still running after 2 s\]") as raised:
        tools.python("x = 2\nprint('begun')\nwhile True: pass")
    assert raised.value.error_type == "timeout"
    assert str(raised.value).startswith("begun")
    assert tools.python("x") == "1"  # as before the call that was ended
    with pytest.raises(ToolError, match="killed"):
        tools.bash("sleep 60")


def test_a_crash_is_an_error_for_the_model(tools: Tools) -> None:
    with pytest.raises(ToolError) as raised:
        tools.python("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    assert raised.value.error_type == "crashed"


@KILLED_FROM_OUTSIDE
def test_a_dead_sandbox_is_no_error_for_the_model() -> None:
    tools = Tools()
    with ProcessSandbox() as tools.sandbox:
        tools.sandbox._worker.kill()  # type: ignore[attr-defined]
        with pytest.raises(SandboxDeadError):
            tools.python("1")


def test_shell_output_has_both_streams_and_the_code(tools: Tools) -> None:
    assert tools.bash("echo out; echo err >&2; exit 2") == "out\n[stderr]\nerr\n[exit code 2]"
    assert tools.bash("true") == "[no output]"
    assert tools.bash("pwd") == "/workspace"  # wherever it really is
    assert tools.run_tests() == "checked\n[exit code 3]"
    with pytest.raises(ToolError):
        tools.bash("echo \0")


def test_long_output_keeps_both_ends(tools: Tools) -> None:
    said = tools.bash("seq 100000")
    assert said.startswith("1\n2\n") and said.endswith("\n100000")
    assert "bytes cut]" in said and len(said) < 8000
    assert cut_middle("a", more=True) == "a\n[more was written and dropped]"


def test_files_are_read_by_lines(tools: Tools) -> None:
    tools.write_file("a/b.txt", "one\ntwo\nthree\n")
    assert tools.read_file("a/b.txt") == "1\tone\n2\ttwo\n3\tthree"
    assert tools.read_file("a/b.txt", 2, 1) == "2\ttwo\n[lines 2 to 2 of 3]"
    tools.write_file("empty", "")
    assert tools.read_file("empty") == "[empty file]"


def test_an_edit_replaces_what_occurs_once(tools: Tools) -> None:
    tools.write_file("f.py", "a = 1\nb = 1\n")
    assert tools.edit_file("f.py", "b = 1", "b = 2") == "Edited f.py at line 2."
    assert tools.sandbox.read("f.py") == b"a = 1\nb = 2\n"


@pytest.mark.parametrize(
    ("arguments", "error_type"),
    [
        (("f.py", "c = 1", ""), "no_match"),
        (("f.py", " = 1", ""), "ambiguous"),
        (("f.py", "a = 1", "a = 1"), "no_change"),
        (("f.py", "", "x"), "invalid_arguments"),
        (("none.py", "a", "b"), "not_found"),
        (("bytes", "a", "b"), "not_text"),
        (("/etc/passwd", "root", "b"), "outside_workspace"),
    ],
)
def test_a_wrong_edit_is_refused_by_kind(tools: Tools, arguments: tuple[str, str, str], error_type: str) -> None:
    tools.write_file("f.py", "a = 1\nb = 1\n")
    tools.sandbox.write("bytes", b"\xff\xfe")
    with pytest.raises(ToolError) as raised:
        tools.edit_file(*arguments)
    assert raised.value.error_type == error_type
    assert tools.sandbox.read("f.py") == b"a = 1\nb = 1\n"


@pytest.mark.parametrize(("first_line", "error_type"), [(0, "invalid_arguments"), (9, "out_of_range")])
def test_lines_that_are_not_there(tools: Tools, first_line: int, error_type: str) -> None:
    tools.write_file("f", "one\n")
    with pytest.raises(ToolError) as raised:
        tools.read_file("f", first_line)
    assert raised.value.error_type == error_type


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        (
            "def f():\r\n    return 1\r\n",
            "def f():\n    return 1",
            "def f():\n    x = 2\n    return x",
            "def f():\r\n    x = 2\r\n    return x\r\n",
        ),
        ("a\r\nb\r\n", "b", "b\nc", "a\r\nb\r\nc\r\n"),
        ("a\nb\n", "b", "b\nc", "a\nb\nc\n"),
        ("a\r\nb\nc\n", "a\nb", "x\ny", "x\r\ny\nc\n"),
        ("a\r\nb\r\n", "a\r\nb", "a\nb", "a\nb\r\n"),
    ],
)
def test_an_edit_keeps_the_endings_of_lines(tools: Tools, text: str, old: str, new: str, expected: str) -> None:
    tools.sandbox.write("w.py", text.encode())
    shown = tools.read_file("w.py")
    assert "\r" not in shown
    tools.edit_file("w.py", old, new)
    assert tools.sandbox.read("w.py") == expected.encode()


def test_numbers_of_lines_are_those_of_python(tools: Tools) -> None:
    tools.write_file("odd.py", "import os\n\x0c\ndef a():\n    x = 'a\u2028b\x85c'\n    raise KeyError\n")
    assert tools.read_file("odd.py").split("\n")[-1] == "5\t    raise KeyError"
    assert tools.edit_file("odd.py", "KeyError", "ValueError") == "Edited odd.py at line 5."
    assert tools.bash("grep -n raise odd.py") == "5:    raise ValueError"
