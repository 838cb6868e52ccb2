"""A recipe in which one policy makes skills in one task and uses them in the next, from scratch on a laptop."""

from __future__ import annotations

from agentgym.credit.compose import CreditConfig
from agentgym.engine import SamplingParams
from agentgym.rollout.group import GroupConfig
from agentgym.trainers.config.optimizer import OptimizerConfig
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EnvConfig, EvalConfig, ModelConfig, TrainConfig
from agentgym.trainers.recipes.mixture import DEMO_SFT_OPTIMIZER, KITCHEN

ERRANDS = [
    "pick_and_place_simple",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
]
"""Errands with one object: three to six calls once it is found, which a skill can make at once."""


def skill_chain() -> TrainConfig:
    """SAGE: two errands of one kind in a row; a skill of the first is used in the second, and pays for both."""
    return TrainConfig(
        recipe="skill-chain",
        env=EnvConfig(
            id="agentgym/SkillChain-v0",
            kwargs={"env": "agentgym/Household-v0", "env_kwargs": {**KITCHEN, "task_types": ERRANDS}},
        ),
        model=ModelConfig(
            hidden_size=128, num_layers=4, intermediate_size=128, vocab_size=1024, max_context_tokens=768
        ),
        sft=SftConfig(
            num_demos=2500,
            noise=0.1,
            noise_weight=0.0,
            num_epochs=1,
            batch_size=8,
            checkpoint_every=200,
            optimizer=DEMO_SFT_OPTIMIZER,
        ),
        num_steps=40,
        groups_per_step=4,
        group=GroupConfig(group_size=8, num_envs=32),
        sampling=SamplingParams(max_new_tokens=96),
        credit=CreditConfig(estimator="grpo", norm="mean_norm"),
        optimizer=OptimizerConfig(lr=2e-4),
        eval=EvalConfig(num_episodes=200, kwargs={"earlier": "oracle"}),
    )
