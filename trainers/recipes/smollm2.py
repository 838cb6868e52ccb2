"""Recipes for SmolLM2-135M-Instruct, a real pretrained model that two CPU cores can train."""

from __future__ import annotations

from agentgym.credit.compose import CreditConfig
from agentgym.engine import SamplingParams
from agentgym.rollout.group import GroupConfig
from agentgym.trainers.config.optimizer import OptimizerConfig
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import (
    EnvConfig,
    EvalConfig,
    ModelConfig,
    TrainConfig,
)
from agentgym.trainers.losses.config import LossConfig

SFT_OPTIMIZER = OptimizerConfig(lr=5e-5, schedule="linear", warmup_steps=2, betas=(0.9, 0.95), eps=1e-8)


def smollm2_wiki() -> TrainConfig:
    """SmolLM2 learns to look things up: questions of two hops, search results of one page, calls in JSON."""
    return TrainConfig(
        recipe="smollm2-wiki",
        env=EnvConfig(
            id="agentgym/WikiWorld-v0",
            kwargs={
                "search_only": True,
                "hops": [1, 2],
                "num_pages": 60,
                "max_results": 1,
                "fillers": 0,
                "aliases": 0.0,
                "stale_pages": 0.0,
                "distractors": 0.0,
                "max_turns": 4,
            },
        ),
        model=ModelConfig(path="smollm2", tools_style="compact", max_context_tokens=512),
        sft=SftConfig(
            num_demos=64, noise=0.0, num_epochs=1, batch_size=8, observation_weight=0.0, optimizer=SFT_OPTIMIZER
        ),
        num_steps=8,
        groups_per_step=4,
        group=GroupConfig(group_size=8, num_envs=32),
        sampling=SamplingParams(max_new_tokens=48),
        credit=CreditConfig(estimator="gigpo"),
        loss=LossConfig(tokens_per_microbatch=2048),
        optimizer=OptimizerConfig(lr=1e-5, eps=1e-8),
        eval=EvalConfig(num_episodes=48),
        checkpoint_every=100,
    )


SMOLLM2_RECIPES = {"smollm2-wiki": smollm2_wiki}
