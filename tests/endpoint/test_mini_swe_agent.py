"""mini-swe-agent as it is released, on an issue of SWE-v0."""

from __future__ import annotations

import asyncio
import os
import subprocess

import pytest
from testkit.scripted_engine import ScriptedEngine

from agentgym.endpoint.harness import HarnessConfig
from agentgym.endpoint.play import HarnessAgents
from agentgym.engine import SamplingParams
from agentgym.envs.code.swe import SWEEnv
from agentgym.rollout.request import RolloutRequest
from agentgym.types import Status, Task

PYTHON = os.environ.get("AGENTGYM_MINI_SWE_AGENT_PYTHON", "")
"""A Python that has mini-swe-agent; its dependencies clash with those of the tests."""


def has_mini_swe_agent() -> bool:
    return bool(PYTHON) and not subprocess.run([PYTHON, "-c", "import minisweagent"], check=False).returncode


def solving_commands(task: Task) -> list[str]:
    """Return shell commands that look at the repository and write the files as the oracle leaves them."""
    env = SWEEnv(sandbox="process")
    env.reset(options={"task": task})
    before = dict(env.seen_work())
    while (action := env.oracle()).calls[0].name != "submit":  # type: ignore[union-attr]
        env.step(action)
    after = dict(env.seen_work())
    env.close()
    changed = [(path, text) for path, text in after.items() if before.get(path) != text]
    assert changed
    return ["ls", *(f"cat > {path} <<'END'\n{text.rstrip()}\nEND" for path, text in changed)]


@pytest.mark.slow
@pytest.mark.skipif(not has_mini_swe_agent(), reason="set AGENTGYM_MINI_SWE_AGENT_PYTHON to a Python that has it")
def test_it_solves_an_issue_through_the_endpoint() -> None:
    env = SWEEnv(sandbox="process")
    task = env.tasks("train")[0]
    commands = [*solving_commands(task), "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]
    engine = ScriptedEngine([f"THOUGHT: next.\n\n```mswea_bash_command\n{command}\n```" for command in commands])
    config = HarnessConfig.of({"name": "mini_swe_agent", "python": PYTHON})

    async def play() -> None:
        agents = HarnessAgents(engine, engine.renderer, SamplingParams(max_new_tokens=4096), config)
        try:
            trajectory = await agents.play_episode(env, RolloutRequest(task=task, make_agent=agents))
        finally:
            await agents.close()
        assert trajectory.status is Status.COMPLETED, trajectory.error
        assert trajectory.success
        assert (trajectory.reward or 0.0) >= 1.0
        (segment,) = trajectory.segments
        assert len(segment.turns) == len(commands)
        assert segment.token_ids == (*engine.prompts[-1], *segment.turns[-1].completion.token_ids)
        assert len({turn.state_key for turn in segment.turns}) > 1

    asyncio.run(play())
    env.close()
