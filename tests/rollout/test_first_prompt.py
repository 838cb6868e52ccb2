"""Prompts without room for a turn are refused before a run, end one episode as data, and stop a run if all are."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from testkit.counting_env import Counting
from testkit.tokenizers_for_tests import trained

from agentgym.check.policies import ScriptedEngine
from agentgym.engine import SamplingParams
from agentgym.errors import ConfigError, RunStoppedError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import ModelAgent
from agentgym.rollout.first_prompt import check_tools_fit
from agentgym.rollout.group import GroupConfig, check_rollouts, run_groups
from agentgym.rollout.pool import EnvPool
from agentgym.types import Message, Status, Task, TrajectoryGroup


def played(context: int) -> tuple[TrajectoryGroup, ...]:
    renderer = ChatRenderer(trained())
    engine = ScriptedEngine(lambda prompt: [renderer.turn_end_ids[0]], max_context_tokens=context)

    async def run() -> tuple[TrajectoryGroup, ...]:
        pool = EnvPool(Counting, 2)
        try:
            return await run_groups(
                [(n, Task(id=f"t-{n}", split="train", seed=n)) for n in range(2)],
                pool,
                lambda env, seed: ModelAgent(engine, renderer, SamplingParams(max_new_tokens=4), seed),
                GroupConfig(group_size=1, min_valid=1, num_envs=2),
                seed=0,
            )
        finally:
            await pool.close()

    return asyncio.run(run())


def test_tools_that_do_not_fit_are_refused_with_the_numbers() -> None:
    env, renderer = Counting(), ChatRenderer(trained())
    num_tokens = len(renderer.prompt_ids((Message("user", "?"),), env.tools))
    check_tools_fit(renderer, env, num_tokens + 8, 8)
    with pytest.raises(ConfigError) as refused:
        check_tools_fit(renderer, env, num_tokens + 7, 8)
    compact = renderer.in_style(renderer.config.changed({"tools_style": "compact"}))
    num_compact = len(compact.prompt_ids((Message("user", "?"),), env.tools))
    assert f"has {num_tokens} tokens before the task is told" in str(refused.value)
    assert f"a completion of 8 that is more than the context of {num_tokens + 7}" in str(refused.value)
    assert f"model.tools_style=compact (chat.tools_style=compact in eval), {num_compact} tokens" in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        check_tools_fit(compact, env, 3, 8)
    assert "tools_style" not in str(refused.value)  # they are compact already


def test_a_run_whose_first_prompts_are_all_too_long_stops() -> None:
    with pytest.raises(RunStoppedError, match=r"no episode of 2 had room for a turn: the first prompt has \d+ tokens"):
        played(context=20)
    assert all(t.turns for group in played(context=400) for t in group.trajectories)


def test_one_episode_whose_first_prompt_is_too_long_is_data() -> None:
    (fits, _) = played(context=400)
    (trajectory,) = fits.trajectories
    long = replace(trajectory, status=Status.TRUNCATED_TOKENS, segments=(), error="the first prompt has 500 tokens")
    assert long.reward == 0
    check_rollouts([fits, replace(fits, trajectories=(long,))], GroupConfig())
    with pytest.raises(RunStoppedError, match="no episode of 1 had room for a turn: the first prompt has 500 tokens"):
        check_rollouts([replace(fits, trajectories=(long,))], GroupConfig())
