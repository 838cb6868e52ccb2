"""A recipe that trains one small model on four environments at once."""

from __future__ import annotations

from dataclasses import replace

from agentgym.credit.compose import CreditConfig
from agentgym.engine import SamplingParams
from agentgym.rollout.group import GroupConfig
from agentgym.trainers.config.mixture import MixedEnv
from agentgym.trainers.config.optimizer import OptimizerConfig
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EnvConfig, EvalConfig, ModelConfig, TrainConfig

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


# ------------------------------------------------------ recipes for ``agentgym/Household-v0``, from scratch on a laptop

SFT_OPTIMIZER = OptimizerConfig(lr=1.5e-3, schedule="linear", warmup_steps=20, weight_decay=0.01, eps=1e-8)
DEMO_SFT_OPTIMIZER = replace(SFT_OPTIMIZER, kind="muon", lr=5e-3)
KITCHEN = {
    "rooms": ["kitchen"],
    "task_types": [
        "pick_and_place_simple",
        "pick_clean_then_place_in_recep",
        "pick_heat_then_place_in_recep",
        "pick_cool_then_place_in_recep",
        "pick_two_obj_and_place",
    ],
    "num_receptacles": 5,
    "num_objects": 4,
    "max_turns": 16,
}
"""A kitchen's errands: what there is to name is little enough for a small model to learn in minutes."""


def household_demo() -> TrainConfig:
    """A 0.5 M parameter agent learns to keep house: noisy demonstrations, then GiGPO. Minutes on two CPU cores.

    Random actions are part of the demonstrations, but their tokens are not trained. Without them the policy does not
    learn to recover from a mistake.
    """
    return TrainConfig(
        recipe="household-demo",
        env=EnvConfig(id="agentgym/Household-v0", kwargs=KITCHEN),
        model=ModelConfig(
            hidden_size=128, num_layers=4, intermediate_size=128, vocab_size=1024, max_context_tokens=512
        ),
        sft=SftConfig(
            num_demos=5600,
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
        sampling=SamplingParams(max_new_tokens=16),
        credit=CreditConfig(estimator="gigpo"),
        optimizer=OptimizerConfig(lr=2e-4),
        eval=EvalConfig(num_episodes=200),
    )


def household_long() -> TrainConfig:
    """The same errands from a weaker start: 200 RL steps, enough to compare ways to assign credit."""
    demo = household_demo()
    return replace(
        demo,
        recipe="household-long",
        model=replace(demo.model, num_layers=3, intermediate_size=0),
        sft=SftConfig(num_demos=6000, noise=0.25, num_epochs=2, batch_size=4, optimizer=SFT_OPTIMIZER),
        num_steps=200,
    )


def household_smoke() -> TrainConfig:
    """The same path in half a minute, to check that everything works; it learns next to nothing."""
    demo = household_long()
    return replace(
        demo,
        recipe="household-smoke",
        model=replace(demo.model, hidden_size=64, num_layers=2),
        sft=replace(demo.sft, num_demos=320, num_epochs=1, checkpoint_every=40),
        num_steps=5,
        groups_per_step=2,
        group=replace(demo.group, group_size=4, num_envs=8),
        eval=EvalConfig(num_episodes=16),
        checkpoint_every=5,
    )
