"""Recipes for pages in a browser, from nothing on a laptop."""

from __future__ import annotations

from agentgym.credit.compose import CreditConfig
from agentgym.engine import SamplingParams
from agentgym.rollout.group import GroupConfig
from agentgym.trainers.config import (
    EnvConfig,
    EvalConfig,
    ModelConfig,
    OptimizerConfig,
    SftConfig,
    TrainConfig,
)

SFT_OPTIMIZER = OptimizerConfig(lr=1.5e-3, schedule="linear", warmup_steps=20, weight_decay=0.01, eps=1e-8)
TASKS = [
    "click-button",
    "click-link",
    "click-tab",
    "click-widget",
    "click-dialog-2",
    "focus-text-2",
    "enter-text",
    "navigate-tree",
]
"""Pages that clicks and filled boxes suffice for: what to find is named in the sentence, in its place or its kind."""


def miniwob_demo() -> TrainConfig:
    """A 0.7 M parameter agent learns eight tasks of MiniWoB++: few demonstrations, then GiGPO. Needs Chromium."""
    return TrainConfig(
        recipe="miniwob-demo",
        env=EnvConfig(
            id="agentgym/MiniWoB-v0", kwargs={"task": TASKS, "brief": True, "actions": ["minimal"], "max_turns": 5}
        ),
        model=ModelConfig(
            hidden_size=128, num_layers=3, vocab_size=1024, num_text_episodes=160, max_context_tokens=1024
        ),
        sft=SftConfig(num_demos=400, noise=0.0, num_epochs=3, batch_size=4, optimizer=SFT_OPTIMIZER),
        num_steps=100,
        groups_per_step=8,
        group=GroupConfig(group_size=8, num_envs=8),
        sampling=SamplingParams(max_new_tokens=24),
        credit=CreditConfig(estimator="gigpo"),
        optimizer=OptimizerConfig(lr=3e-4),
        eval=EvalConfig(num_episodes=200),
    )
