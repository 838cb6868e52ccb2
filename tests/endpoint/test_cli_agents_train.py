"""Command-line agents, unmodified, through which the model ``tiny`` is trained one step.

The model has 64 dimensions, and the agents' prompts have 1,500 to 20,000 of its tokens. A warm start on one short
conversation teaches it an answer that ends each agent's work. Terminus-2 asks for JSON, and asks twice, so there it is
the agent's own conversation.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from testkit import errand_env
from testkit.cli_agents import PLAYED, folder_of, written
from testkit.scripted_engine import ScriptedEngine
from testkit.trained_runs import assert_one_step_trained_every_token

from agentgym.endpoint.calls import ChatCall
from agentgym.endpoint.harness import HarnessConfig
from agentgym.endpoint.play import HarnessAgents
from agentgym.endpoint.wire import openai_chat
from agentgym.engine import SamplingParams
from agentgym.registry import make
from agentgym.rollout.request import RolloutRequest
from agentgym.types import Status

ENV = f"{errand_env.__file__}:Errand-v0"

SETTINGS = """
    env.kwargs={"sandbox":"process"} sft.num_demos=0 sft.batch_size=1 sft.num_epochs=200 num_steps=1 groups_per_step=1
    group.group_size=2 group.num_envs=2 sampling.max_new_tokens=256 sampling.temperature=0.5
    model.max_context_tokens=65536 credit.estimator=returns eval.num_episodes=1 eval.base=false
    harness.max_calls=6 harness.options.memory_mb=200000000
"""
"""Settings of a run. No mean of the group is taken off, so that a group in which all succeed trains, too."""


def conversation(name: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Return the messages with which a policy ends an agent's work."""
    said = written(name, [])
    if name != "terminus_2":
        return [{"role": "user", "content": "Answer."}, {"role": "assistant", "content": said[0]}]
    asked: list[ChatCall] = []
    parse = openai_chat.parse

    def kept(body: Mapping[str, Any]) -> ChatCall:
        asked.append(parse(body))
        return asked[-1]

    monkeypatch.setattr(openai_chat, "parse", kept)
    engine = ScriptedEngine(said)
    config = HarnessConfig.of({"name": name, "folder": folder_of(name), "memory_mb": 200_000_000})
    env = make(ENV, sandbox="process")

    async def play() -> None:
        agents = HarnessAgents(engine, engine.renderer, SamplingParams(max_new_tokens=4096), config)
        try:
            await agents.play_episode(env, RolloutRequest(task=env.tasks("train")[0], make_agent=agents))
        finally:
            await agents.close()

    asyncio.run(play())
    env.close()
    messages = [{"role": one.role, "content": one.text} for one in asked[-1].messages]
    return [*messages, {"role": "assistant", "content": said[-1]}]


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED)
def test_its_rollouts_train_a_model_from_scratch(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demos, run = tmp_path / "demos.jsonl", tmp_path / "run"
    demos.write_text(json.dumps({"messages": conversation(name, monkeypatch)}) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "agentgym", "train", "tiny", f"env.id={ENV}"]
    command += [*SETTINGS.split(), f'sft.files=["{demos}"]', f"harness.name={name}"]
    command += [f"harness.options.folder={folder_of(name)}", "--run-dir", str(run)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    episodes = assert_one_step_trained_every_token(run)
    assert any(one.status is Status.COMPLETED and one.success for one in episodes), done.stderr
