"""Recipes for your own environment: a model from scratch, or a model to fine-tune."""

from __future__ import annotations

from agentgym.engine import SamplingParams
from agentgym.rollout.group import GroupConfig
from agentgym.trainers.config.optimizer import OptimizerConfig
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EnvConfig, EvalConfig, LoraSettings, ModelConfig, TrainConfig


def tiny() -> TrainConfig:
    """A small model from scratch on any environment: ``agentgym train tiny env.id=my_env.py:Mine-v0``.

    The demonstrations come from the environment's oracle, or from random calls if it has none. Without demonstrations
    (``sft.num_demos=0``) the model begins with random tokens.
    """
    return TrainConfig(
        recipe="tiny",
        env=EnvConfig(id="agentgym/Household-v0"),
        model=ModelConfig(hidden_size=64, num_layers=2, vocab_size=512, max_context_tokens=512),
        sft=SftConfig(num_demos=1500, without_oracle="random"),
        num_steps=40,
        groups_per_step=8,
        group=GroupConfig(group_size=8, num_envs=64),
        sampling=SamplingParams(max_new_tokens=16),
        optimizer=OptimizerConfig(lr=2e-3, schedule="linear"),
        eval=EvalConfig(num_episodes=100),
    )


def finetune() -> TrainConfig:
    """LoRA on a model that knows tool calls: ``agentgym train finetune model.path=FOLDER env.id=ID``."""
    return TrainConfig(
        recipe="finetune",
        env=EnvConfig(id="agentgym/Household-v0"),
        model=ModelConfig(path="Qwen/Qwen2.5-0.5B-Instruct", max_context_tokens=4096, lora=LoraSettings(rank=16)),
        num_steps=100,
        groups_per_step=4,
        group=GroupConfig(group_size=8, num_envs=32),
        sampling=SamplingParams(max_new_tokens=256),
        optimizer=OptimizerConfig(lr=1e-5, warmup_steps=5, weight_decay=0.01),
    )
