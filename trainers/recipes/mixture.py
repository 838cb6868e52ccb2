"""A recipe that trains one small model on four environments at once."""

from __future__ import annotations

from agentgym.credit.compose import CreditConfig
from agentgym.engine import SamplingParams
from agentgym.rollout.group import GroupConfig
from agentgym.trainers.config.mixture import MixedEnv
from agentgym.trainers.config.optimizer import OptimizerConfig
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EnvConfig, EvalConfig, ModelConfig, TrainConfig
from agentgym.trainers.recipes.household import KITCHEN, SFT_OPTIMIZER

KIOSK = {"stock": "kiosk", "num_products": 200, "interface": "text", "max_turns": 8}
"""A shop with a stock small enough to read."""
SMALL_WIKI = {
    "num_pages": 16,
    "num_worlds": 0,
    "hops": [1, 2],
    "vocabulary": 32,
    "aliases": 0.0,
    "stale_pages": 0.0,
    "distractors": 0.0,
    "fillers": 0,
    "max_results": 2,
    "max_turns": 6,
    "relations": ["author", "birthplace", "mayor", "employer", "founder", "country"],
}
"""Questions of one and two hops, every task about an encyclopedia of its own."""
ONE_LINERS = {
    "level": 0,
    "sandbox": "process",
    "max_turns": 4,
    "rewards": {"edit_made": 0.5, "tests_collected": 0.5},
}
"""Functions of one line, graded by hidden tests in a process of their own."""


def mixture() -> TrainConfig:
    """One 0.7 M parameter agent learns to keep house, shop, look things up and write functions, all in one run."""
    return TrainConfig(
        recipe="mixture",
        env=EnvConfig(id="agentgym/Household-v0", kwargs=KITCHEN),
        envs=(
            MixedEnv(id="agentgym/Household-v0", name="house", kwargs=KITCHEN, sft={"num_demos": 2500, "noise": 0.25}),
            MixedEnv(id="agentgym/WebShop-v0", name="shop", kwargs=KIOSK, sft={"num_demos": 3000, "noise": 0.1}),
            MixedEnv(id="agentgym/WikiWorld-v0", name="wiki", kwargs=SMALL_WIKI, sft={"num_demos": 1500, "noise": 0.1}),
            MixedEnv(
                id="agentgym/Code-v0",
                name="code",
                kwargs=ONE_LINERS,
                sft={"num_demos": 300, "noise": 0.0},
                sampling={"max_new_tokens": 48},
                credit={"estimator": "grpo", "shapers": [{"kind": "g_ra", "thresholds": [0.5]}]},
            ),
        ),
        model=ModelConfig(hidden_size=128, num_layers=3, vocab_size=1536, max_context_tokens=1024),
        sft=SftConfig(num_demos=7300, noise=0.2, num_epochs=2, batch_size=4, optimizer=SFT_OPTIMIZER),
        num_steps=200,
        groups_per_step=16,
        group=GroupConfig(group_size=8, num_envs=64),
        sampling=SamplingParams(max_new_tokens=16),
        credit=CreditConfig(estimator="gigpo"),
        optimizer=OptimizerConfig(lr=3e-4),
        eval=EvalConfig(num_episodes=100),
        checkpoint_every=20,
    )
