"""Command-line agents, unmodified, on an issue of SWE-v0 with a scripted policy."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from testkit.cli_agents import folder_of, played, written
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


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_folder_with_the_agent_must_be_named(name: str) -> None:
    with pytest.raises(ConfigError, match=r"harness\.folder is empty"):
        HarnessConfig.of({"name": name}).check()
    HarnessConfig.of({"name": name, "folder": "node_modules"}).check()


@pytest.mark.slow
@pytest.mark.parametrize("name", played())
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
