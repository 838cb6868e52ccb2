"""Recipes in which one policy makes the tasks that it solves, from scratch on a laptop."""

from __future__ import annotations

from agentgym.credit.compose import CreditConfig
from agentgym.engine import SamplingParams
from agentgym.rollout.group import GroupConfig
from agentgym.trainers.config.optimizer import OptimizerConfig
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EnvConfig, EvalConfig, ModelConfig, TrainConfig
from agentgym.trainers.recipes.mixture import DEMO_SFT_OPTIMIZER

ASKED_WIKI = {
    "num_pages": 16,
    "num_worlds": 0,
    "hops": [1],
    "max_hops": 2,
    "vocabulary": 16,
    "aliases": 0.0,
    "stale_pages": 0.0,
    "distractors": 0.0,
    "fillers": 0,
    "relations": ["author", "birthplace", "mayor", "employer"],
    "max_results": 1,
    "max_turns": 8,
    "invalid_penalty": 0.5,
    "search_only": True,
}
"""Small encyclopedias, one for each task. Demonstrations ask questions of one hop; two are allowed. The penalty for
invalid proposals is ours: a small model from scratch makes many."""


def wiki_selfplay() -> TrainConfig:
    """Search self-play: one policy asks questions about an encyclopedia and answers them; evaluated as the solver."""
    return TrainConfig(
        recipe="wiki-selfplay",
        env=EnvConfig(id="agentgym/WikiSelfPlay-v0", kwargs=ASKED_WIKI),
        model=ModelConfig(hidden_size=128, num_layers=3, vocab_size=512, max_context_tokens=512),
        sft=SftConfig(num_demos=2000, noise=0.05, num_epochs=1, batch_size=4, optimizer=DEMO_SFT_OPTIMIZER),
        num_steps=60,
        groups_per_step=32,
        group=GroupConfig(group_size=1, min_valid=1, num_envs=32),
        sampling=SamplingParams(max_new_tokens=48),
        credit=CreditConfig(estimator="rae"),
        optimizer=OptimizerConfig(lr=2e-4),
        eval=EvalConfig(num_episodes=200, kwargs={"opponent": "oracle"}),
    )
