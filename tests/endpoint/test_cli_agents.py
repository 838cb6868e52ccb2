"""Command-line agents, unmodified, on an issue of SWE-v0 with a scripted policy."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from testkit.issue_commands import solving_commands
from testkit.scripted_engine import ScriptedEngine

from agentgym.endpoint.harness import HarnessConfig
from agentgym.endpoint.harnesses import sandbox_command
from agentgym.endpoint.harnesses.cli_agents import COMMANDS
from agentgym.endpoint.play import HarnessAgents
from agentgym.engine import SamplingParams
from agentgym.envs.code.swe import SWEEnv
from agentgym.errors import ConfigError, EnvError
from agentgym.rollout.request import RolloutRequest
from agentgym.sandbox import ExecResult
from agentgym.types import Status, Trajectory

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


def needs(name: str) -> pytest.MarkDecorator:
    if name in LONG and not os.environ.get("CI_ALL"):
        return pytest.mark.skip(reason="set CI_ALL=1")
    variable = VARIABLES.get(name, "AGENTGYM_NPM_AGENTS")
    return pytest.mark.skipif(not os.environ.get(variable), reason=f"set {variable}, or make test-agents")


PLAYED = [pytest.param(name, marks=needs(name)) for name in sorted(COMMANDS)]


def written(name: str, commands: Sequence[str]) -> list[str]:
    """Return what a policy writes so that an agent runs commands, one in each completion."""
    if name == "terminus_2":
        done = [{"analysis": "a", "plan": "p", "commands": [], "task_complete": True}] * 2  # it is asked twice
        keys = [{"keystrokes": f"{line}\n", "duration": 3.0} for line in commands]
        return [json.dumps(one) for one in ([{"analysis": "a", "plan": "p", "commands": [key]} for key in keys] + done)]
    tool, arguments = TOOLS[name]
    calls = [{"name": tool, "arguments": arguments(line)} for line in commands]
    return [*(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls), "It is repaired."]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_folder_with_the_agent_must_be_named(name: str) -> None:
    with pytest.raises(ConfigError, match=r"harness\.folder is empty"):
        HarnessConfig.of({"name": name}).check()
    HarnessConfig.of({"name": name, "folder": "node_modules"}).check()


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED)
def test_it_solves_an_issue(name: str) -> None:
    env = SWEEnv(sandbox="process")
    task = env.tasks("train")[0]
    commands = solving_commands(task)
    engine = ScriptedEngine(written(name, commands))
    engine.max_context_tokens = 400_000
    said: list[str] = []
    config = HarnessConfig.of({"name": name, "folder": folder_of(name), "memory_mb": 200_000_000})

    async def play() -> Trajectory:
        agents = HarnessAgents(engine, engine.renderer, SamplingParams(max_new_tokens=4096), config, say=said.append)
        try:
            return await agents.play_episode(env, RolloutRequest(task=task, make_agent=agents))
        finally:
            await agents.close()

    trajectory = asyncio.run(play())
    env.close()
    assert trajectory.status is Status.COMPLETED, trajectory.error
    assert trajectory.success and (trajectory.reward or 0.0) >= 1.0, said
    assert sum(len(segment.turns) for segment in trajectory.segments) >= len(commands) + 1


@pytest.mark.parametrize("is_cut", [True, False])
def test_an_agent_that_a_cut_completion_ended_is_no_failure(is_cut: bool) -> None:
    result = ExecResult(exit_code=1, stdout="Incomplete response", stderr="", wall_s=1.0, cpu_s=1.0)
    episode = SimpleNamespace(is_cut=is_cut, sampling_s=1.0)
    options = sandbox_command.SandboxCommandOptions(command="agent")
    with nullcontext() if is_cut else pytest.raises(EnvError, match="code 1: Incomplete response"):
        sandbox_command._judge(result, episode, options)
