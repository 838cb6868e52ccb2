"""Command-line agents from npm and PyPI, for tests that run them in a sandbox."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from agentgym.endpoint.harnesses.cli_agents import COMMANDS

TOOLS: dict[str, tuple[str, Callable[[str], dict[str, str]]]] = {
    "claude_code": ("Bash", lambda line: {"command": line, "description": "Work."}),
    "codex": ("exec_command", lambda line: {"cmd": line}),
    "opencode": ("bash", lambda line: {"command": line, "description": "Work."}),
    "gemini_cli": ("run_shell_command", lambda line: {"command": line}),
    "qwen_code": ("run_shell_command", lambda line: {"command": line}),
}
VARIABLES = {"qwen_code": "AGENTGYM_QWEN_CODE", "terminus_2": "AGENTGYM_TERMINUS"}
"""Variables with the folders of agents; ``make test-agents`` creates and sets them."""
LONG = ("opencode", "gemini_cli")


def folder_of(name: str) -> str:
    """Return the folder with an agent; empty if it is not installed here."""
    folder = os.environ.get(VARIABLES.get(name, "AGENTGYM_NPM_AGENTS"), "")
    return str(Path(folder).resolve()) if folder else ""


def needs(name: str, long: Sequence[str] = LONG) -> pytest.MarkDecorator:
    if name in long and not os.environ.get("CI_ALL"):
        return pytest.mark.skip(reason="set CI_ALL=1")
    variable = VARIABLES.get(name, "AGENTGYM_NPM_AGENTS")
    return pytest.mark.skipif(not os.environ.get(variable), reason=f"set {variable}, or make test-agents")


def played(long: Sequence[str] = LONG) -> list[ParameterSet]:
    """Return the names of all agents, where those that take long are skipped without ``CI_ALL=1``."""
    return [pytest.param(name, marks=needs(name, long)) for name in sorted(COMMANDS)]


def written(name: str, commands: Sequence[str]) -> list[str]:
    """Return what a policy writes so that an agent runs commands, one in each completion."""
    if name == "terminus_2":
        done = [{"analysis": "a", "plan": "p", "commands": [], "task_complete": True}] * 2  # it is asked twice
        keys = [{"keystrokes": f"{line}\n", "duration": 3.0} for line in commands]
        return [json.dumps(one) for one in ([{"analysis": "a", "plan": "p", "commands": [key]} for key in keys] + done)]
    tool, arguments = TOOLS[name]
    calls = [{"name": tool, "arguments": arguments(line)} for line in commands]
    return [*(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls), "It is repaired."]
