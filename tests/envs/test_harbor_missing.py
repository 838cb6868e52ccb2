"""Verifiers of Harbor tasks that lack a program, a file or a module: their 0 is the work's only if the work is why."""

from __future__ import annotations

from typing import Any

import pytest
from testkit.harbor import RUNGS, MakeTask, make_task, outcome

from agentgym.errors import EnvError

__all__ = ["make_task"]
_GRADE = "echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
_NODE = "nodejs_of_the_image"  # as node, which this machine may have


def graded(check: str, **more: str) -> dict[str, str]:
    """Return a task's files whose script writes 1 or 0 by the exit code of a check."""
    return {"tests/test.sh": f"{check} && {_GRADE}", **more}


BROKEN: dict[str, dict[str, str]] = {
    "an interpreter": graded(f"{_NODE} /tests/check.js"),
    "an interpreter in dash": graded(f"{_NODE} /tests/check.js")
    | {"tests/test.sh": f"#!/bin/sh\n{_NODE} x && {_GRADE}"},
    "a test runner": graded("bats_of_the_image /tests/check.bats"),
    "a program whose message is hidden": graded(f"{_NODE} /tests/check.js > /dev/null 2>&1"),
    "a program behind a wrapper": graded(f"timeout 5 {_NODE} /tests/check.js > /dev/null 2>&1"),
    "a program that env finds": graded("/tests/check", **{"tests/check": f"#!/usr/bin/env {_NODE}\n1\n"}),
    "a program by its path": graded(f"/usr/local/bin/{_NODE} /tests/check.js"),
    "an interpreter by its path": graded("/tests/check", **{"tests/check": f"#!/usr/bin/{_NODE}\n1\n"}),
    "a program that a script of Python starts": graded(
        "python3 /tests/check.py",
        **{"tests/check.py": f"import subprocess\nsubprocess.run(['{_NODE}', '-v'], check=True)\n"},
    ),
    "a program whose message is in a log": graded(f"sh -c '{_NODE} x' > /logs/verifier/out.txt 2>&1"),
    "a script of the tests": graded("python3 /tests/gone.py"),
    "a module of the tests": graded("python3 /tests/check.py", **{"tests/check.py": "import yaml_of_the_image\n"}),
    "a file of the tests": graded("diff /app/hello.txt /tests/gone.txt"),
    "a file that a script of the tests reads": graded(
        "python3 /tests/check.py",
        **{"tests/check.py": "assert open('/app/hello.txt').read() == open('/tests/gone').read()\n"},
    ),
    "a script without its execute bit": graded("/tests/other", **{"tests/other": "#!/bin/sh\n"}),
    "a script that is no Python": graded("python3 /tests/check.py", **{"tests/check.py": "if True\n    pass\n"}),
    "a script that is no shell": graded("bash /tests/check.sh", **{"tests/check.sh": "if then\n"}),
    "a part of a mean": {
        "tests/test.sh": "a=0; b=0; grep -q hello /app/hello.txt && a=1\n"
        f"{_NODE} /tests/check.js && b=1\n"
        'echo "{\\"text\\": $a, \\"style\\": $b}" > /logs/verifier/reward.json\n'
    },
    "a program of a test that unittest runs": {
        "tests/test.sh": f"python3 -m unittest discover -s /tests -p 'check*.py' && {_GRADE}",
        "tests/check_it.py": "import subprocess, unittest\nclass T(unittest.TestCase):\n"
        f"    def test(self): subprocess.run(['{_NODE}', '/app/hello.txt'], check=True)\n",
    },
    "a program that the work does not name": graded(
        f"PATH=/app/bin:$PATH; {_NODE} /app/hello.txt", **{"instruction.md": f"Write hello, which {_NODE} reads."}
    ),
    "a module of the tests that unittest runs": {
        "tests/test.sh": f"cd /app && python3 -m unittest discover -s /tests -p 'check*.py' && {_GRADE}",
        "tests/check_it.py": "import unittest, yaml_of_the_image\nclass T(unittest.TestCase):\n"
        "    def test(self): pass\n",
    },
    "a module beside imports of the work": graded(
        "cd /app && python3 -c 'import yaml_of_the_image; assert open(\"hello.txt\").read()'"
    ),
}
"""Tasks that no work can solve in this sandbox, which their solution shows or nothing does."""


@pytest.mark.parametrize("missing", BROKEN)
def test_a_verifier_without_what_it_calls_gives_no_reward(make_task: MakeTask, missing: str) -> None:
    env = make_task(BROKEN[missing], executable=("tests/check",), outcome="share")
    with pytest.raises(EnvError, match=r"lacks or cannot run '(/tests/|.*_of_the_image)"):
        outcome(env)


_PATH = "export PATH=/app/bin:$PATH\n"
_TOOL = "mkdir bin; printf '#!/bin/sh\\n' > bin/tool; chmod +x bin/tool"
_CALC = "echo 'add = int.__add__' > calc.py"
_BUILT = "sh /app/build.sh > /tests/built 2> /dev/null || rm /tests/built\nsh /tests/built"
WORKS: dict[str, tuple[dict[str, str], str]] = {
    "a program": (graded("/app/tool --check"), "printf '#!/bin/sh\\n' > tool; chmod +x tool"),
    "a program by a relative path": (graded("cd /app && ./tool"), "printf '#!/bin/sh\\n' > tool; chmod +x tool"),
    "a script": (graded("bash /app/tool.sh"), "echo true > tool.sh"),
    "a script of Python": (graded("python3 /app/tool.py"), "touch tool.py"),
    "a program on the path": ({"tests/test.sh": f"{_PATH}tool && {_GRADE}", "solution/solve.sh": _TOOL}, _TOOL),
    "a module": (
        graded("cd /app && python3 -c 'import calc; assert calc.add(1, 2) == 3'", **{"solution/solve.sh": _CALC}),
        _CALC,
    ),
    "a program that the tests build": (
        {"tests/test.sh": f"{_BUILT} && {_GRADE}", "solution/solve.sh": "echo 'echo true' > build.sh"},
        "echo 'echo true' > build.sh",
    ),
    "a module that the instruction names, beside a solution of another task": (
        graded("cd /app && python3 -c 'import calc'", **{"instruction.md": "Write calc.py."}),
        "touch calc.py",
    ),
    "a module of the start": (
        graded(
            "cd /app && python3 -c 'import calc'",
            **{
                "environment/Dockerfile": "FROM agentgym-sandbox:1\nWORKDIR /app\nCOPY calc.py ./\n",
                "environment/calc.py": "import nothing_here\n",
            },
        ),
        "rm calc.py; mkdir calc; touch calc/__init__.py",
    ),
    "a program on the path, beside a solution of another task": (
        {"tests/test.sh": f"{_PATH}tool && {_GRADE}", "instruction.md": "Write the program /app/bin/tool."},
        _TOOL,
    ),
    "an unneeded program": (graded(f"{_NODE} --version; grep -q hello /app/hello.txt"), "echo hello > hello.txt"),
}
"""Tasks with work that lacks what it was to provide, and what solves them."""


@pytest.mark.parametrize("missing", WORKS)
@pytest.mark.parametrize("command", ["true", "echo 'sh: 1: node: not found'; echo x > hello.txt"])
def test_work_that_lacks_what_it_was_to_provide_earns_nothing(make_task: MakeTask, missing: str, command: str) -> None:
    files, solution = WORKS[missing]
    env = make_task(files)
    assert outcome(env, command)[0] == 0.0
    assert outcome(env, solution)[0] == 1.0


@pytest.mark.parametrize("said", ["sh: 1: sed: not found", "No module named 'sed'", "sed: Could not resolve host: x"])
def test_words_of_the_work_about_the_verifier_void_nothing(make_task: MakeTask, said: str) -> None:
    files = graded(
        "sed -n 1p /app/hello.txt; bash /app/tool.sh; test -s /app/hello.txt", **{"solution/solve.sh": "exit 1"}
    )
    assert outcome(make_task(files), f'echo "echo \\"{said}\\"" > tool.sh')[0] == 0.0


def test_words_of_the_work_about_missing_programs_void_nothing(make_task: MakeTask) -> None:
    check = "sh /app/tool.sh; apt_of_the_image update > /dev/null; grep -q hello /app/hello.txt"
    env = make_task(graded(check))
    forged = "echo 'echo sh: 1: apt_of_the_image: not found' > tool.sh; echo No module named grep >> tool.sh"
    assert outcome(env, forged)[0] == 0.0


@pytest.mark.parametrize(
    "tail", ["tool && echo 1 > /logs/verifier/reward.txt", "/app/tool\necho 1 > /logs/verifier/reward.txt"]
)
def test_a_script_that_stops_without_the_work_is_sound_if_the_solution_passes(make_task: MakeTask, tail: str) -> None:
    made: dict[str, Any] = {
        "tests/test.sh": f"set -e\nPATH=/app:$PATH\n{tail}\n",
        "solution/solve.sh": "cp /solution/tool.sh tool; chmod +x tool",
        "solution/tool.sh": "#!/bin/sh\n",
    }
    assert outcome(make_task(made), "true")[0] == 0.0


@pytest.mark.parametrize("rung", RUNGS)
def test_a_program_that_is_missing_is_found_on_any_rung(make_task: MakeTask, rung: str) -> None:
    env = make_task(BROKEN["a program behind a wrapper"], sandbox=rung)
    with pytest.raises(EnvError, match=f"lacks or cannot run .*'{_NODE}'"):
        outcome(env)
    assert outcome(make_task(graded("/app/tool"), sandbox=rung), "true")[0] == 0.0


@pytest.mark.parametrize(
    ("line", "is_broken"),
    [
        (f"timeout -s KILL 5 {_NODE} x", True),
        (f"env -u HOME A=1 {_NODE} x", True),
        (f"nice -n 5 stdbuf -oL {_NODE} x", True),
        ("timeout -s KILL 5 false", False),
        (f"command -v {_NODE} && {_NODE} x", False),
        ("[ -x /usr/bin/nodejs_of_the_image ] && false", False),
        ("check() { grep -q hello hello.txt; }; check -s", False),
        ("cp /app/answer.txt /tests/answer.txt", False),
        ("A=1 B=2; [[ $A == 2 ]]; (( A == 2 ))", False),
        ("for word in nodejs_of_the_image; do grep -q $word hello.txt; done", False),
        ("case x in nodejs_of_the_image) true;; *) false;; esac", False),
        ("python3 - <<'END'\nimport sys\nsys.exit('nodejs_of_the_image: wrong')\nEND\n[ $? = 0 ]", False),
    ],
)
def test_which_lines_of_a_script_call_what_is_missing(make_task: MakeTask, line: str, is_broken: bool) -> None:
    files = {"tests/test.sh": f"cd /app\n{line} && {_GRADE}", "solution/solve.sh": "exit 1"}
    env = make_task(files)
    if is_broken:
        with pytest.raises(EnvError, match=f"lacks or cannot run '{_NODE}'"):
            outcome(env, "true")
    else:
        assert outcome(env, "true")[0] == 0.0


def test_a_solution_whose_variable_is_not_set_says_nothing(make_task: MakeTask) -> None:
    files = {
        "task.toml": '[solution.env]\nKEY = "${AGENTGYM_TEST_UNSET}"\n',
        "tests/test.sh": f"PATH=/app:$PATH; tool && {_GRADE}",
    }
    assert outcome(make_task(files))[0] == 0.0


def test_options_of_a_scripts_first_line_hold_in_controls(make_task: MakeTask) -> None:
    script = f"#!/bin/bash -e\n{_NODE} x > /dev/null 2>&1 || true\ngrep -q hello /app/hello.txt\n"
    written = "echo 1 > /logs/verifier/reward.txt\n"
    env = make_task({"tests/test.sh": f"{script}{written}", "solution/solve.sh": "true"})
    with pytest.raises(EnvError, match="has a broken verifier: the tests wrote no reward"):
        outcome(env, "true")


def test_a_solution_that_fails_says_nothing(make_task: MakeTask) -> None:
    env = make_task({"tests/test.sh": f"PATH=/app:$PATH; tool && {_GRADE}", "solution/solve.sh": "exit 3"})
    assert outcome(env)[0] == 0.0
