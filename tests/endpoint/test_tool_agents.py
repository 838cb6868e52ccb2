"""Agents of Python frameworks as they are released, on GuessNumber-v0."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from testkit.scripted_engine import ScriptedEngine

from agentgym.endpoint.harness import HarnessConfig
from agentgym.endpoint.play import HarnessAgents
from agentgym.engine import SamplingParams
from agentgym.registry import make
from agentgym.rollout.record import read_json_lines
from agentgym.rollout.request import RolloutRequest
from agentgym.types import Status, Trajectory

PYTHON = os.environ.get("AGENTGYM_TOOL_AGENTS_PYTHON", "")
"""A Python that has openai-agents, langchain, langchain-openai and pydantic-ai-slim[openai]."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="set AGENTGYM_TOOL_AGENTS_PYTHON, or make test-agents"),
]


def called(number: int) -> str:
    return f"<tool_call>{json.dumps({'name': 'guess', 'arguments': {'number': number}})}</tool_call>"


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "openai_agents"},
        {"name": "openai_agents", "api": "chat_completions"},
        {"name": "langgraph"},
        {"name": "pydantic_ai"},
    ],
    ids=lambda one: "-".join(one.values()),
)
def test_it_plays_by_the_environment_s_tools_in_one_segment(settings: dict[str, str]) -> None:
    engine = ScriptedEngine([called(1), called(4)])  # the number is 4
    env = make("agentgym/GuessNumber-v0", largest=4)
    config = HarnessConfig.of({**settings, "python": PYTHON})

    async def play() -> Trajectory:
        agents = HarnessAgents(engine, engine.renderer, SamplingParams(max_new_tokens=512), config)
        try:
            return await agents.play_episode(env, RolloutRequest(task=env.tasks("train")[0], make_agent=agents))
        finally:
            await agents.close()

    trajectory = asyncio.run(play())
    assert trajectory.status is Status.COMPLETED, trajectory.error
    assert trajectory.success and trajectory.reward == 1.0
    first, second = trajectory.turns
    assert [reply.text for reply in first.replies] == ["Too low."] and second.reward == 1.0
    assert "Too low." in engine.text(engine.prompts[1])
    assert [len(segment.turns) for segment in trajectory.segments] == [2]


@pytest.mark.parametrize("name", ["openai_agents", "langgraph", "pydantic_ai"])
def test_its_rollouts_train_a_model_from_scratch(name: str, tmp_path: Path, warm_agentgym: Any) -> None:
    task = ["env.id=agentgym/GuessNumber-v0", "env.kwargs.largest=4", "sft.num_demos=400", "num_steps=1"]
    small = ["groups_per_step=2", "group.group_size=4", "eval.num_episodes=1", "eval.base=false"]
    by_harness = [f"harness.name={name}", f"harness.options.python={Path(PYTHON).absolute()}"]
    run = ["--run-dir", str(tmp_path / "run")]
    done = warm_agentgym("train", "tiny", *task, *small, *by_harness, *run, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = (row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl")
    assert row["num_calls"] > 0 and row["trained_tokens"] > 0
