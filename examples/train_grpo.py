"""Train a small agent to keep house with GRPO: environment, engine, rollouts, credit, loss and optimizer on one page.

This is `agentgym train` without its options: no configuration, checkpoints, processes or servers. Run it with
`python examples/train_grpo.py`. It takes about a minute on one CPU core, and prints success on held-out tasks
before and after RL. Every part is a function of agentgym that you can call, replace or read.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

import agentgym
from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import ModelAgent
from agentgym.rollout.context import ContextConfig
from agentgym.rollout.group import GroupConfig, GroupPlayer
from agentgym.rollout.pool import EnvPool
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.data.batch import build_batches
from agentgym.trainers.data.demos import collect_demos, collect_texts
from agentgym.trainers.data.samples import build_samples, filter_groups
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.losses.loss import token_logprobs
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.models.optimizer import OptimizerConfig
from agentgym.trainers.models.tiny import build_model, train_tokenizer
from agentgym.trainers.phases.sft import sft_steps
from agentgym.trainers.sft.rows import sft_rows
from agentgym.types import Task, TrajectoryGroup

# One room with few things: a model of 0.3 million parameters can learn this vocabulary.
HOUSE = {
    "rooms": ["kitchen"],
    "task_types": ["pick_and_place_simple"],
    "num_receptacles": 4,
    "num_objects": 3,
    "max_turns": 8,
}
MODEL = ModelConfig(hidden_size=64, num_layers=3, vocab_size=768, max_context_tokens=256)
WARM_START = SftConfig(
    num_demos=2500,
    noise=0.25,  # a quarter of the actions are random, which leaves something to learn
    num_epochs=2,
    batch_size=4,
    optimizer=OptimizerConfig(lr=3e-3, schedule="linear", warmup_steps=10, weight_decay=0.01, eps=1e-8),
)
GROUPS = GroupConfig(group_size=8, num_envs=64)
SAMPLING = SamplingParams(max_new_tokens=16)
CREDIT = CreditConfig(estimator="grpo")
GROUPS_PER_STEP = 8
LEARNING_RATE = 3e-4
CLIP_LOW, CLIP_HIGH = 0.2, 0.28  # DAPO's clip-higher


def make_env() -> Env:
    return agentgym.make("agentgym/Household-v0", **HOUSE)


# ------------------------------------------------------------------------------------------------- model and warm start


def make_model(tasks: Sequence[Task], seed: int) -> tuple[Any, Any]:
    """Build a small model with random weights, and train its tokenizer on the environment's texts."""
    texts, words = collect_texts(make_env, list(tasks[:200]), seed=seed)
    tokenizer = train_tokenizer(texts, MODEL.vocab_size, words, MODEL.splits)
    return build_model(tokenizer, MODEL, seed), tokenizer


async def warm_start(model: Any, renderer: ChatRenderer, pool: EnvPool, tasks: Sequence[Task], seed: int) -> None:
    """Fine-tune on demonstrations by the environment's oracle, so that the model learns the format of actions."""
    demos = await collect_demos(
        list(enumerate(tasks[: WARM_START.num_demos])),
        pool,
        renderer,
        noise=WARM_START.noise,
        max_context_tokens=MODEL.max_context_tokens,
        max_new_tokens=SAMPLING.max_new_tokens,
        context=ContextConfig(),
        seed=seed,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=WARM_START.optimizer.lr)
    for _ in sft_steps(model, optimizer, sft_rows(demos, WARM_START, renderer), WARM_START, seed, 0):
        pass


# ------------------------------------------------------------------------------------------------------------- one step


def train_on(model: Any, optimizer: torch.optim.Optimizer, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Compute every turn's advantage, and take one optimizer step on the policy-gradient loss."""
    credit = credit_groups(groups, CREDIT)
    verdicts = filter_groups(groups, credit, GROUPS.min_valid, "advantage")  # drops groups whose advantages are all 0
    batches = build_batches(build_samples(verdicts), aggregation="token-mean")
    optimizer.zero_grad()
    total = 0.0
    for batch in batches:
        logprob, _ = token_logprobs(model, batch, SAMPLING.temperature)
        # the engine computes in the same precision as the trainer, so its log-probabilities are the old policy's
        ratio = (logprob - batch["logprob_rollout"]).exp()
        clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
        per_token = -torch.minimum(ratio * batch["advantage"], clipped * batch["advantage"])
        loss = (per_token * batch["loss_weight"]).sum()  # the weights make the sum a mean over all tokens of the step
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    optimizer.step()
    return {"loss": total, "grad_norm": norm, "zero_advantage": credit.diagnostics["zero_advantage_share"]}


def success(groups: Sequence[TrajectoryGroup]) -> float:
    """Return the share of episodes that succeeded, without those that the infrastructure failed."""
    valid = [trajectory for group in groups for trajectory in group.valid]
    return sum(bool(trajectory.success) for trajectory in valid) / max(1, len(valid))


# ------------------------------------------------------------------------------------------------------------- the loop


async def train(num_steps: int, num_eval: int, seed: int) -> tuple[float, float]:
    """Train and return success on held-out tasks before and after RL."""
    torch.manual_seed(seed)
    probe = make_env()
    train_tasks, test_tasks = probe.tasks("train"), probe.tasks("test")[:num_eval]
    pool = EnvPool(make_env, GROUPS.num_envs)
    model, tokenizer = make_model(train_tasks, seed)
    renderer = ChatRenderer(tokenizer)
    await warm_start(model, renderer, pool, train_tasks, seed)

    engine = TorchEngine(model, num_slots=GROUPS.num_envs, max_context_tokens=MODEL.max_context_tokens)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)

    def make_agent(env: Env, episode_seed: int) -> ModelAgent:
        return ModelAgent(engine, renderer, SAMPLING, episode_seed, ContextConfig(), env.max_turns)

    async def play(tasks: Sequence[tuple[int, Task]], config: GroupConfig, play_seed: int) -> list[TrajectoryGroup]:
        player = GroupPlayer(pool, make_agent, config, seed=play_seed)
        return await asyncio.gather(*(player.play(ordinal, task) for ordinal, task in tasks))

    evaluate = partial(play, list(enumerate(test_tasks)), GroupConfig(group_size=1, min_valid=1), seed + 1)
    await engine.update_weights(0)
    before = success(await evaluate())
    print(f"held-out success before RL: {before:.3f}")
    for step in range(num_steps):
        first = WARM_START.num_demos + step * GROUPS_PER_STEP
        tasks = [(ordinal, train_tasks[ordinal]) for ordinal in range(first, first + GROUPS_PER_STEP)]
        groups = await play(tasks, GROUPS, seed)
        numbers = train_on(model, optimizer, groups)
        await engine.update_weights(step + 1)
        shown = "  ".join(f"{name} {value:.3f}" for name, value in numbers.items())
        print(f"step {step + 1:3}  success {success(groups):.3f}  {shown}")
    after = success(await evaluate())
    print(f"held-out success after RL: {after:.3f}")
    await engine.close()
    await pool.close()
    return before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small household agent with GRPO.")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--eval", type=int, default=200, help="held-out tasks")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    asyncio.run(train(options.steps, options.eval, options.seed))
