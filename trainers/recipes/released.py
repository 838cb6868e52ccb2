"""Recipes after the scripts released with Search-R1, IGPO, SPIRAL and rStar2-Agent.

They train all weights of the models in the scripts, sharded over the processes that torchrun starts.
``docs/recipes.md`` compares each with its script. We have run none of them to its end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from agentgym.credit.compose import CreditConfig
from agentgym.credit.selections.downsampling import RocOptions
from agentgym.credit.shapers.information_gain import InformationGainOptions
from agentgym.engine import SamplingParams
from agentgym.rollout.group import GroupConfig
from agentgym.trainers.config.optimizer import OptimizerConfig
from agentgym.trainers.config.train import EnvConfig, EvalConfig, ModelConfig, TrainConfig
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import EntropyOptions, KlOptions
from agentgym.trainers.recipes.qwen import ADAMW

SEARCH_LOSS: Final = LossConfig(
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=3.0,
    minibatch="rows",
    rows_per_update=256,
    recompute_activations=True,
    regularisers=(KlOptions(coef=0.001), EntropyOptions(coef=0.001)),
)
"""The loss of the scripts of Search-R1 and IGPO, without their minibatches of rows and the dual clip."""


def searchr1() -> TrainConfig:
    """Search-R1: GRPO on the outcome only, with four searches per episode."""
    return TrainConfig(
        recipe="searchr1",
        env=EnvConfig(id="agentgym/SearchQA-v0", kwargs={"max_turns": 4, "max_results": 3, "result_tokens": 500}),
        model=ModelConfig(path="Qwen/Qwen2.5-7B", max_context_tokens=4596),
        num_steps=1005,
        groups_per_step=512,
        group=GroupConfig(group_size=5, num_envs=64),
        sampling=SamplingParams(max_new_tokens=500),
        credit=CreditConfig(estimator="grpo"),
        loss=replace(SEARCH_LOSS, dual_clip=0.0, rows_per_update=256),
        optimizer=replace(ADAMW, warmup_steps=286),
        eval=EvalConfig(num_episodes=256),
        checkpoint_every=100,
    )


def igpo() -> TrainConfig:
    """IGPO: every turn is credited with the increase in the probability of the reference answer."""
    return TrainConfig(
        recipe="igpo",
        env=EnvConfig(id="agentgym/SearchQA-v0", kwargs={"max_turns": 10, "outcome": "f1"}),
        model=ModelConfig(path="Qwen/Qwen2.5-7B-Instruct", max_context_tokens=32768),
        num_steps=100,
        groups_per_step=32,
        group=GroupConfig(group_size=16, num_envs=16),
        sampling=SamplingParams(max_new_tokens=2000),
        credit=CreditConfig(estimator="igpo", shapers=(InformationGainOptions(),)),
        loss=replace(SEARCH_LOSS, rows_per_update=32),
        optimizer=ADAMW,
        eval=EvalConfig(num_episodes=128),
        checkpoint_every=10,
    )


def spiral() -> TrainConfig:
    """SPIRAL: Kuhn poker by self-play, with advantages over each player's running baseline."""
    return TrainConfig(
        recipe="spiral",
        env=EnvConfig(id="agentgym/KuhnPoker-v0", kwargs={"opponent": "self"}),
        model=ModelConfig(path="Qwen/Qwen3-4B-Base", max_context_tokens=12800),
        num_steps=400,
        groups_per_step=128,
        group=GroupConfig(group_size=1, min_valid=1, num_envs=32),
        sampling=SamplingParams(max_new_tokens=4096),
        credit=CreditConfig(estimator="rae"),
        loss=LossConfig(clip_low=0.2, clip_high=0.2, dual_clip=0.0, num_epochs=2, recompute_activations=True),
        optimizer=OptimizerConfig(lr=1e-6, betas=(0.9, 0.95), eps=ADAMW.eps),
        eval=EvalConfig(num_episodes=64, kwargs={"opponent": "equilibrium"}, temperature=0.6),
        checkpoint_every=16,
    )


def rstar2() -> TrainConfig:
    """rStar2-Agent: mathematics with a Python interpreter and GRPO-RoC."""
    return TrainConfig(
        recipe="rstar2",
        env=EnvConfig(id="agentgym/PythonMath-v0", kwargs={"max_turns": 10}),
        model=ModelConfig(path="Qwen/Qwen3-14B-Base", max_context_tokens=10240),
        num_steps=200,
        groups_per_step=128,
        group=GroupConfig(group_size=32, num_envs=64),
        sampling=SamplingParams(max_new_tokens=8192),
        credit=CreditConfig(estimator="grpo", selections=(RocOptions(keep=16),)),
        loss=LossConfig(clip_low=0.2, clip_high=0.28, dual_clip=3.0, recompute_activations=True),
        optimizer=replace(ADAMW, warmup_steps=20),
        eval=EvalConfig(num_episodes=30),
        checkpoint_every=10,
    )
