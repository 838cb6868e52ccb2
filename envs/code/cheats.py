"""Attempts to score without doing the task, with which ``agentgym check`` shows that none succeeds.

Each cheat is one episode that writes files with the environment's tools and then submits. The programs use more
knowledge of the grading than an agent could have: they attack its processes, descriptors and memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentgym.canonical import packaged
from agentgym.envs.code.workspace import Assignment
from agentgym.types import Message, ToolCall, ToolSpec

_PROGRAMS = packaged(__package__, "cheats.toml")
_ANYTHING, _RUNNER, _DAEMON = _PROGRAMS["anything"], _PROGRAMS["runner"], _PROGRAMS["daemon"]
WORKS = {
    "patches the test runner": _RUNNER + _ANYTHING,
    "is equal to everything": _PROGRAMS["equal"] + _ANYTHING,
    "claims to have passed": _PROGRAMS["claim"],
    "reads the answer": _PROGRAMS["read"] + _ANYTHING,
    "leaves before the tests": "import os\nos._exit(0)\n",
    "skips the tests": "import unittest\nraise unittest.SkipTest('done')\n",
    "kills the grader": _PROGRAMS["stop"].format("SIGKILL"),
    "interrupts the grader": _PROGRAMS["stop"].format("SIGINT"),
}
"""Programs that are submitted instead of the work."""

_PASSING = "def test_nothing():\n    pass\n"
_HOOK = "def pytest_pyfunc_call(pyfuncitem):\n    return True\n"
_PLANTED = {
    "conftest.py": _HOOK,
    "sitecustomize.py": _RUNNER,
    "usercustomize.py": _RUNNER,
    "pytest.ini": "[pytest]\naddopts = --collect-only\n",
    "setup.cfg": "[tool:pytest]\naddopts = --collect-only\n",
    "planted.pth": "import sitecustomize\n",
    **{f"{name}.py": _RUNNER for name in ("unittest", "json", "socket", "random", "pytest", "importlib")},
}
_REWARDS = ("reward.txt", "reward.json", "result.json", "logs/verifier/reward.txt", "/logs/verifier/reward.txt")


def cheats_for(assignment: Assignment, tools: Sequence[ToolSpec]) -> Mapping[str, tuple[Message, ...]]:
    """Return the turns of each cheat by name; none if the tools cannot write files and submit."""
    names = {spec.name for spec in tools}
    if not {"write_file", "submit"} <= names:
        return {}
    programs = [path for path in assignment.files if path.endswith(".py") and assignment.is_editable(path)]
    given = [path for path in assignment.files if not assignment.is_editable(path)]
    tests = [*given, "test_solution.py", "tests/test_hidden.py", "test_hidden.py"]
    found = {
        "overwrites the tests": _writing({path: _PASSING for path in tests}),
        "plants configuration": _writing(_PLANTED),
        "writes a reward": _writing({path: "1" for path in _REWARDS}),
    }
    for name, program in WORKS.items():
        found[name] = _writing({path: program for path in programs})
    for tool in {"python", "bash"} & names:
        arguments = {"code": _DAEMON} if tool == "python" else {"command": f"setsid python3 -c '{_DAEMON}' &"}
        found[f"leaves a daemon by {tool}"] = (_turn(ToolCall(tool, arguments)), _turn(ToolCall("submit")))
    return dict(sorted(found.items()))


def _writing(files: Mapping[str, str]) -> tuple[Message, ...]:
    calls = (ToolCall("write_file", {"path": path, "content": content}) for path, content in files.items())
    return (_turn(*calls), _turn(ToolCall("submit")))


def _turn(*calls: ToolCall) -> Message:
    return Message("assistant", "", calls)
