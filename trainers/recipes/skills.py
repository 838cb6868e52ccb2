"""A recipe in which one policy makes skills in one task and uses them in the next, from scratch on a laptop."""

from __future__ import annotations

from agentgym.credit.compose import CreditConfig
from agentgym.engine import SamplingParams
from agentgym.rollout.group import GroupConfig
from agentgym.trainers.config.optimizer import OptimizerConfig
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EnvConfig, EvalConfig, ModelConfig, TrainConfig
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.recipes.mixture import DEMO_SFT_OPTIMIZER, KITCHEN

ERRANDS = {**KITCHEN, "task_types": ["pick_and_place_simple"]}
"""Errands whose last three calls are mostly the same but for their objects, so that a skill of one fits the next."""


def skill_chain() -> TrainConfig:
    """SAGE: two errands of one kind in a row; a skill of the first is used in the second, and pays for both.

    Advantages are not divided by the deviation, and there is no KL penalty, as in the paper. The penalty for invalid
    turns takes the place of its -1 for turns without code. Each episode has the same weight in the loss, since
    long failures would outweigh short successes with equal weights of tokens.
    """
    return TrainConfig(
        recipe="skill-chain",
        env=EnvConfig(
            id="agentgym/SkillChain-v0",
            kwargs={"env": "agentgym/Household-v0", "env_kwargs": ERRANDS},
        ),
        model=ModelConfig(
            hidden_size=128, num_layers=4, intermediate_size=128, vocab_size=1024, max_context_tokens=512
        ),
        sft=SftConfig(
            num_demos=4000,
            noise=0.1,
            noise_weight=0.0,
            num_epochs=1,
            batch_size=8,
            checkpoint_every=200,
            optimizer=DEMO_SFT_OPTIMIZER,
        ),
        num_steps=40,
        groups_per_step=8,
        group=GroupConfig(group_size=8, num_envs=64),
        sampling=SamplingParams(max_new_tokens=96),
        credit=CreditConfig(estimator="grpo", norm="mean_norm", invalid_penalty=0.1),
        loss=LossConfig(aggregation="seq-mean-token-mean"),
        optimizer=OptimizerConfig(lr=1e-4),
        eval=EvalConfig(num_episodes=200, kwargs={"earlier": "oracle"}),
    )
