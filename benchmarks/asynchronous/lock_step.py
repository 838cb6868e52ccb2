"""The loop that older trainers have: a batch of environments that take every turn together.

Each turn the model generates for the whole batch, finished episodes included, whose tokens are discarded. Then all
environments step, and the turn ends when the slowest has answered. The batch ends with its longest episode. Everything
else is as in the other arms: engine, environments, seeds, loss and training steps. The comparison favours this loop a
little, since the prompts of finished episodes are in the engine's cache.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from agentgym.env.env import Env
from agentgym.rollout.agent import Agent, Decision, MakeAgent, ModelAgent
from agentgym.trainers.config.overrides import save_config
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.loop import TrainingLoop
from agentgym.trainers.run.run import Run


class Batch:
    """The episodes of one step, and the moments at which they wait for each other."""

    def __init__(self, size: int) -> None:
        self.together = asyncio.Barrier(size)
        self.num_playing = size


class LockStepAgent(ModelAgent):
    """Agent that generates and acts together with the whole batch, even after its own episode has ended."""

    def __init__(self, run: Run, batch: Batch, seed: int) -> None:
        super().__init__(run.engine, run.renderer, run.config.sampling, seed)
        self._batch = batch

    async def decide(self) -> Decision | None:
        await self._batch.together.wait()
        decision = await super().decide()
        await self._batch.together.wait()  # generation is one call for the whole batch
        return decision

    async def end(self) -> None:
        self._batch.num_playing -= 1
        prompt_ids = self._context.prompt_ids[: self._engine.max_context_tokens - 1]
        room = self._engine.max_context_tokens - len(prompt_ids)
        sampling = replace(self._sampling, max_new_tokens=min(self._sampling.max_new_tokens, room))
        while True:
            await self._batch.together.wait()
            if not self._batch.num_playing:
                break
            await self._engine.generate(prompt_ids, sampling, session_id=self._session_id)
            await self._batch.together.wait()
        await super().end()


def lock_step_agents(run: Run) -> MakeAgent:
    """Agents that come in batches of a step's episodes."""
    size = run.config.groups_per_step * run.config.group.group_size
    batches: list[Batch] = []
    made = 0

    def make_agent(env: Env, seed: int) -> Agent:
        nonlocal made
        if made % size == 0:
            batches[:] = [Batch(size)]
        made += 1
        return LockStepAgent(run, batches[0], seed)

    return make_agent


def train_in_lock_step(config: TrainConfig, run_dir: Path) -> None:
    """Train as :func:`agentgym.trainers.train.train` does, with rollouts in lock-step."""
    size = config.groups_per_step * config.group.group_size
    assert config.pipeline.mode == "sync" and config.group.num_envs >= size and config.group.max_retries == 0
    loop = TrainingLoop(config, run_dir, resume=False)
    run_dir.mkdir(parents=True)
    save_config(config, run_dir / "config.json")
    run, free = loop.run, loop.run.make_agent
    run.make_agent = lambda env, temperature=None, sampling=None: (
        lock_step_agents(run) if temperature is None else free(env, temperature, sampling)
    )
    asyncio.run(loop.train())
