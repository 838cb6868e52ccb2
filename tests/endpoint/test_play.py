"""Episodes of the reference harness against those of the ordinary loop."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from testkit.drawing_engine import DrawingEngine
from testkit.tokenizers_for_tests import HERMES, THINKING

from agentgym.endpoint.harness import HarnessConfig
from agentgym.endpoint.play import HarnessAgents
from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.errors import EngineError
from agentgym.registry import make
from agentgym.rollout.loop import run_episode
from agentgym.rollout.match import play_task
from agentgym.rollout.request import RolloutRequest
from agentgym.types import Completion, Latency, Segment, Status, Trajectory

SAID = (
    '<tool_call>{"name": "look", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "go_to", "arguments": {"receptacle": "fridge 1"}}</tool_call>',
    '<tool_call>{"name": "no_such_tool", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "look", "arguments": </tool_call>',
    '<tool_call>{"name": "look", "arguments": {}}</tool_call><tool_call>{"name": "inventory", "arguments": {}}'
    "</tool_call>",
    "I have no idea.",
    "",
)


def timeless(trajectory: Trajectory) -> Trajectory:
    """Return a trajectory without its latencies."""
    segments = [Segment(tuple(replace(t, latency=Latency()) for t in one.turns)) for one in trajectory.segments]
    return replace(trajectory, segments=tuple(segments))


async def played(engine: DrawingEngine, env: Env, seed: int, config: HarnessConfig | None = None) -> list[Trajectory]:
    """Return the episode of the ordinary loop and that of the harness."""
    task = env.tasks("train")[seed]
    request = RolloutRequest(task=task, make_agent=engine.agents(), seed=seed)
    agents = HarnessAgents(
        engine, engine.renderer, SamplingParams(max_new_tokens=64), config or HarnessConfig(name="openai_loop")
    )
    try:
        ordinary = await run_episode(env, request)
        await env.aend_episode()
        (by_harness,) = await play_task(env, replace(request, make_agent=agents))
    finally:
        await agents.close()
    return [timeless(ordinary), timeless(by_harness)]


@pytest.mark.parametrize("template", [HERMES, THINKING])
@pytest.mark.parametrize("seed", range(4))
def test_the_reference_harness_plays_the_episodes_of_run_episode(template: str, seed: int) -> None:
    env = make("agentgym/Household-v0", max_turns=8)
    said = [*SAID, "<think>Where?</think>" + SAID[0]] if template is THINKING else SAID
    engine = DrawingEngine(said, template)
    engine.max_context_tokens = 32_768
    ordinary, by_harness = asyncio.run(played(engine, env, seed))
    assert ordinary.turns
    assert by_harness == ordinary


def test_a_full_context_ends_the_episode_as_it_does_in_run_episode() -> None:
    engine = DrawingEngine(SAID, HERMES)
    env = make("agentgym/Household-v0", max_turns=50)
    engine.max_context_tokens = 2600
    ordinary, by_harness = asyncio.run(played(engine, env, 0))
    assert ordinary.status is by_harness.status is Status.TRUNCATED_TOKENS
    assert by_harness.segments == ordinary.segments


class FailingEngine(DrawingEngine):
    """Fails at the third completion."""

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session_id: str = "") -> Completion:
        if len(self.prompts) == 2:
            raise EngineError("out of memory")
        return await super().generate(prompt_ids, sampling, session_id=session_id)


def test_a_failed_engine_fails_the_episode_whatever_the_agent_does() -> None:
    engine = FailingEngine(SAID[:1], HERMES)
    env = make("agentgym/Household-v0", max_turns=8)

    async def play() -> Trajectory:
        agents = HarnessAgents(engine, engine.renderer, SamplingParams(), HarnessConfig(name="openai_loop"))
        try:
            request = RolloutRequest(task=env.tasks("train")[0], make_agent=agents)
            return await agents.play_episode(env, request)
        finally:
            await agents.close()

    trajectory = asyncio.run(play())
    assert trajectory.status is Status.ABORTED
    assert trajectory.reward is None
    assert "out of memory" in str(trajectory.error)
