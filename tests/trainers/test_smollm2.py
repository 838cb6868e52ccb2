"""SmolLM2-135M-Instruct, a real pretrained model: it answers, calls a tool by an example, and is trained."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import torch
from testkit.own_tokenizers import SMOLLM2, needs

from agentgym.engine import SamplingParams
from agentgym.registry import make
from agentgym.rollout.context import ContextConfig
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.pool import EnvPool
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.placement.policy import Policy, open_policy
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train
from agentgym.types import Message, TrajectoryGroup

pytestmark = [pytest.mark.slow, needs(SMOLLM2)]
MAX_GAP = 1e-4
"""Between an engine's and the trainer's log-probabilities, in float32."""


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.set_num_threads(1)
    settings = {"codec": "compact", "tools_style": "compact"}
    return open_policy(SMOLLM2, num_slots=8, max_context_tokens=256, chat=settings)


def test_it_knows_a_capital(policy: Policy) -> None:
    prompt = policy.renderer.prompt_ids((Message("user", "What is the capital of France?"),), ())
    sampling = SamplingParams(temperature=0, max_new_tokens=12, stop_token_ids=policy.renderer.turn_end_ids)
    said = policy.renderer.read(asyncio.run(policy.engine.generate(prompt, sampling)).token_ids, ())
    assert said.text == "The capital of France is Paris."


def test_it_calls_a_tool_where_the_prompt_shows_how(policy: Policy) -> None:
    def play(context: ContextConfig) -> tuple[TrajectoryGroup, ...]:
        shown = Policy(policy.engine, policy.renderer, context)

        async def run() -> tuple[TrajectoryGroup, ...]:
            pool = EnvPool(lambda: make("agentgym/Maze-v0", size=3, max_turns=1), 8)
            tasks = list(enumerate(make("agentgym/Maze-v0", size=3).tasks("test")[:8]))
            config = GroupConfig(group_size=1, min_valid=1, num_envs=8)
            try:
                return await run_groups(tasks, pool, shown.agents(SamplingParams(max_new_tokens=8)), config, seed=0)
            finally:
                await pool.close()

        return asyncio.run(run())

    def num_valid(groups: tuple[TrajectoryGroup, ...]) -> int:
        return sum(turn.is_valid for group in groups for t in group.trajectories for turn in t.turns)

    example = ContextConfig(example_turns=2).with_example(make("agentgym/Maze-v0", size=3))
    assert num_valid(play(ContextConfig())) == 0
    assert num_valid(play(example)) >= 3  # 16 of 24 on another task


def test_it_is_trained_with_the_probabilities_that_it_sampled_with(tmp_path: Path) -> None:
    changes = [
        "num_steps=1",
        "groups_per_step=1",
        "group.group_size=4",
        "zero_variance_filter=off",
        "eval.num_episodes=1",
    ]
    demonstrations = ["sft.num_demos=4", "sft.batch_size=4", "sft.num_epochs=2", "sft.optimizer.lr=1e-5"]
    config = apply_overrides(load_recipe("smollm2-guess"), [*changes, *demonstrations, "eval.num_episodes=1"])
    train(config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (rl,) = [row for row in rows if row["phase"] == "rl"]
    assert rl["logprob_gap_max"] < MAX_GAP
    losses = [row["action_loss"] for row in rows if row["phase"] == "sft"]
    assert losses[-1] < losses[0]
    assert (tmp_path / "run" / "model" / "agentgym_chat.json").is_file()
