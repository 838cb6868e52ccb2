"""Command-line agents from npm, unmodified, on an issue of SWE-v0 with a scripted policy."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from testkit.issue_commands import solving_commands
from testkit.scripted_engine import ScriptedEngine

from agentgym.endpoint.harness import HarnessConfig
from agentgym.endpoint.harnesses.cli_agents import COMMANDS
from agentgym.endpoint.play import HarnessAgents
from agentgym.engine import SamplingParams
from agentgym.envs.code.swe import SWEEnv
from agentgym.errors import ConfigError
from agentgym.rollout.request import RolloutRequest
from agentgym.types import Status, Trajectory

FOLDER = os.environ.get("AGENTGYM_NPM_AGENTS", "")
"""A ``node_modules`` with the agents; ``make .agents/npm/.installed`` creates one."""
TOOLS: dict[str, tuple[str, Callable[[str], dict[str, str]]]] = {
    "claude_code": ("Bash", lambda line: {"command": line, "description": "Work."}),
    "codex": ("exec_command", lambda line: {"cmd": line}),
    "opencode": ("bash", lambda line: {"command": line, "description": "Work."}),
    "gemini_cli": ("run_shell_command", lambda line: {"command": line}),
}
LONG = ("opencode", "gemini_cli")
PLAYED = [
    pytest.param(name, marks=pytest.mark.skipif(not os.environ.get("CI_ALL"), reason="set CI_ALL=1"))
    if name in LONG
    else name
    for name in sorted(TOOLS)
]
needs_agents = pytest.mark.skipif(not FOLDER, reason="set AGENTGYM_NPM_AGENTS, or make test-agents")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_folder_with_the_agent_must_be_named(name: str) -> None:
    with pytest.raises(ConfigError, match=r"harness\.folder is empty"):
        HarnessConfig.of({"name": name}).check()
    HarnessConfig.of({"name": name, "folder": "node_modules"}).check()


@needs_agents
@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED)
def test_it_solves_an_issue(name: str) -> None:
    env = SWEEnv(sandbox="process")
    task = env.tasks("train")[0]
    commands = solving_commands(task)
    tool, arguments = TOOLS[name]
    calls = [{"name": tool, "arguments": arguments(line)} for line in commands]
    engine = ScriptedEngine([*(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls), "It is repaired."])
    engine.max_context_tokens = 400_000
    said: list[str] = []
    config = HarnessConfig.of({"name": name, "folder": str(Path(FOLDER).resolve()), "memory_mb": 200_000_000})

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
