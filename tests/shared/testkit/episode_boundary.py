"""One group of episodes through every stage: render, sample, parse, step, credit, record and read back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentgym.check.policies import ScriptedEngine
from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.evals.episodes import EpisodeFiles, read_groups
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import ModelAgent
from agentgym.rollout.context import FULL, ContextConfig
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.record import GroupRecord, read_records, write_records
from agentgym.rollout.request import EpisodeLimits
from agentgym.types import Task, Trajectory, TrajectoryGroup

LIMITS = EpisodeLimits(reset_timeout_s=60.0, step_timeout_s=60.0)


def play_all(
    renderer: ChatRenderer,
    tokenizer: Any,
    texts: Sequence[str],
    make_env: Callable[[], Env],
    context: ContextConfig = FULL,
    num_members: int = 1,
) -> tuple[TrajectoryGroup, ...]:
    """Play one group per text, in which the policy answers with that text in every turn."""

    async def run() -> tuple[TrajectoryGroup, ...]:
        groups: list[TrajectoryGroup] = []
        config = GroupConfig(
            group_size=num_members,
            min_valid=1,
            num_envs=num_members,
            max_retries=0,
            max_failure_rate=1.0,
            limits=LIMITS,
        )
        for number, text in enumerate(texts):
            pool = EnvPool(make_env, num_members)
            spoken = [*tokenizer.encode(text, add_special_tokens=False), renderer.turn_end_ids[0]]

            def make(env: Env, seed: int, spoken: list[int] = spoken) -> ModelAgent:
                engine = ScriptedEngine(lambda _: spoken, max_context_tokens=10_000_000)
                return ModelAgent(engine, renderer, SamplingParams(max_new_tokens=1_000_000), seed, context)

            task = Task(id=f"t-{number}", split="train", seed=number)
            groups += await run_groups([(number, task)], pool, make, config, seed=number)
            await pool.close()
        return tuple(groups)

    return asyncio.run(run())


def must_go_through(groups: Sequence[TrajectoryGroup], folder: Path) -> list[Trajectory]:
    """Assert that groups can be credited, recorded and read back; return their trajectories."""
    if any(group.valid for group in groups):
        credit_groups([group for group in groups if group.valid], CreditConfig(estimator="gigpo"))
    write_records(folder / "step.jsonl.gz", [GroupRecord(group=group) for group in groups])
    read = read_records(folder / "step.jsonl.gz")
    assert [record.group.ordinal for record in read] == [group.ordinal for group in groups]
    files = EpisodeFiles(folder / "eval", resume=False)
    for group in groups:
        for trajectory in group.trajectories:
            files.add(TrajectoryGroup(ordinal=group.ordinal, task=group.task, trajectories=(trajectory,)))
    assert len(read_groups(folder / "eval")) == sum(len(group.trajectories) for group in groups)
    return [trajectory for group in groups for trajectory in group.trajectories]
