"""Recipes for SmolLM2-135M-Instruct, a real pretrained model that two CPU cores can train."""

from __future__ import annotations

from dataclasses import replace

from agentgym.credit.compose import CreditConfig
from agentgym.engine import SamplingParams
from agentgym.rollout.context import ContextConfig
from agentgym.rollout.group import GroupConfig
from agentgym.trainers.config.optimizer import OptimizerConfig
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import (
    EnvConfig,
    EvalConfig,
    ModelConfig,
    TrainConfig,
)
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import EntropyOptions

SFT_OPTIMIZER = OptimizerConfig(lr=1e-4, schedule="linear", warmup_steps=2, eps=1e-8)
RL_OPTIMIZER = OptimizerConfig(lr=2e-5, eps=1e-8)
WIKI = {
    "search_only": True,
    "hops": [1, 2],
    "num_pages": 60,
    "max_results": 1,
    "fillers": 0,
    "aliases": 0.0,
    "stale_pages": 0.0,
    "distractors": 0.0,
    "max_turns": 4,
    "rewards": {"gold_retrieved": 0.3, "invalid_turn": 0.1},
}
"""Questions of one and two hops. A search shows one whole page; finding a page that is needed is rewarded."""
SHELVES = {
    "rooms": ["kitchen"],
    "task_types": ["pick_and_place_simple"],
    "num_receptacles": 3,
    "num_objects": 3,
    "max_turns": 10,
}
"""A kitchen's simplest errands: find a thing in one of three places, and put it elsewhere."""


def smollm2_wiki() -> TrainConfig:
    """SmolLM2 learns to look things up: JSON calls in ``<tool_call>``, 64 demonstrations, then GiGPO."""
    return TrainConfig(
        recipe="smollm2-wiki",
        env=EnvConfig(id="agentgym/WikiWorld-v0", kwargs=WIKI),
        model=ModelConfig(path="smollm2", tools_style="compact", max_context_tokens=512),
        sft=SftConfig(
            num_demos=64, noise=0.0, num_epochs=1, batch_size=4, observation_weight=0.0, optimizer=SFT_OPTIMIZER
        ),
        num_steps=8,
        groups_per_step=8,  # of four rollouts: eight tasks say more about a step than four
        group=GroupConfig(group_size=4, num_envs=32),
        sampling=SamplingParams(max_new_tokens=48),
        credit=CreditConfig(estimator="gigpo"),
        loss=LossConfig(tokens_per_microbatch=2048),
        optimizer=replace(RL_OPTIMIZER, lr=1e-5, warmup_steps=2),
        eval=EvalConfig(num_episodes=100, base=True),
        checkpoint_every=100,
    )


def smollm2_household() -> TrainConfig:
    """SmolLM2 keeps house: one-line calls of twelve tools, 80 noisy demonstrations, then GiGPO."""
    return TrainConfig(
        recipe="smollm2-household",
        env=EnvConfig(id="agentgym/Household-v0", kwargs=SHELVES),
        model=ModelConfig(path="smollm2", codec="compact", tools_style="compact", max_context_tokens=900),
        sft=SftConfig(
            num_demos=80, noise=0.1, num_epochs=1, batch_size=4, observation_weight=0.0, optimizer=SFT_OPTIMIZER
        ),
        num_steps=8,
        groups_per_step=4,
        group=GroupConfig(group_size=8, num_envs=32),
        sampling=SamplingParams(max_new_tokens=16),
        credit=CreditConfig(estimator="gigpo", norm="mean_norm", invalid_penalty=0.1),
        loss=LossConfig(tokens_per_microbatch=2048),
        optimizer=RL_OPTIMIZER,
        eval=EvalConfig(num_episodes=64, base=True),
        checkpoint_every=100,
    )


def smollm2_guess() -> TrainConfig:
    """SmolLM2 learns to guess a number by RL alone; a worked example in the prompt shows it how to call the tool.

    Calls that cannot be parsed or that fail cost a small penalty. Advantages are not divided by their standard
    deviation, because the division would make that penalty as large as success in groups where all episodes fail.
    """
    return TrainConfig(
        recipe="smollm2-guess",
        env=EnvConfig(id="agentgym/GuessNumber-v0", kwargs={"largest": 4, "hints": False}),
        model=ModelConfig(path="smollm2", codec="compact", tools_style="compact", max_context_tokens=320),
        context=ContextConfig(example_turns=1),
        num_steps=10,
        groups_per_step=6,
        group=GroupConfig(group_size=6, num_envs=36),
        sampling=SamplingParams(max_new_tokens=8),
        credit=CreditConfig(estimator="gigpo", norm="mean_norm", invalid_penalty=0.1),
        loss=LossConfig(tokens_per_microbatch=2048, regularisers=(EntropyOptions(coef=0.01),)),
        optimizer=OptimizerConfig(lr=1e-5, warmup_steps=2, eps=1e-8),
        eval=EvalConfig(num_episodes=64),
        checkpoint_every=100,
    )


def smollm2_demo() -> TrainConfig:
    """The recipe ``smollm2-guess`` for two cores, which ``make demo`` runs."""
    return replace(smollm2_guess(), recipe="smollm2-demo", num_threads=2)


def smollm2_vllm() -> TrainConfig:
    """The recipe ``smollm2-guess`` with rollouts by a vLLM server, which ``agentgym serve-model smollm2`` starts."""
    engine = EngineConfig(kind="vllm", urls=("http://127.0.0.1:8000",))
    return replace(smollm2_guess(), recipe="smollm2-vllm", engine=engine)


SMOLLM2_RECIPES = {
    "smollm2-demo": smollm2_demo,
    "smollm2-guess": smollm2_guess,
    "smollm2-household": smollm2_household,
    "smollm2-vllm": smollm2_vllm,
    "smollm2-wiki": smollm2_wiki,
}
