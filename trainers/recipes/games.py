"""Recipes for games of two players, learnt by self-play from nothing on a laptop."""

from __future__ import annotations

from agentgym.credit.compose import CreditConfig
from agentgym.credit.rae import RaeOptions
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
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import EntropyOptions

FORM = SftConfig(
    num_demos=400,
    noise=1.0,
    num_epochs=2,
    batch_size=16,
    optimizer=OptimizerConfig(lr=3e-3, schedule="linear", warmup_steps=10, weight_decay=0.01, eps=1e-8),
)
"""Random legal moves: they teach how a move is written, and nothing of the game."""


def kuhn() -> TrainConfig:
    """Kuhn poker by self-play with SPIRAL's role-conditioned advantages; evaluated against an equilibrium."""
    return TrainConfig(
        recipe="kuhn",
        env=EnvConfig(id="agentgym/KuhnPoker-v0", kwargs={"opponent": "self", "explain": False, "max_errors": 0}),
        model=ModelConfig(hidden_size=32, num_layers=2, head_dim=16, vocab_size=320, max_context_tokens=128),
        sft=FORM,
        num_steps=200,
        groups_per_step=64,
        group=GroupConfig(group_size=1, min_valid=1, num_envs=64),
        sampling=SamplingParams(max_new_tokens=4),
        credit=CreditConfig(estimator="rae", options=RaeOptions(skip_zero=False)),
        loss=LossConfig(regularisers=(EntropyOptions(coef=0.05),)),
        optimizer=OptimizerConfig(lr=1e-3, schedule="linear"),
        eval=EvalConfig(num_episodes=400, kwargs={"opponent": "equilibrium"}),
    )


def tictactoe() -> TrainConfig:
    """Tic-tac-toe by self-play with SPIRAL's role-conditioned advantages; evaluated against a perfect player."""
    return TrainConfig(
        recipe="tictactoe",
        env=EnvConfig(id="agentgym/TicTacToe-v0", kwargs={"opponent": "self", "explain": False, "max_errors": 0}),
        model=ModelConfig(hidden_size=64, num_layers=3, head_dim=16, vocab_size=320, max_context_tokens=256),
        sft=FORM,
        num_steps=200,
        groups_per_step=64,
        group=GroupConfig(group_size=1, min_valid=1, num_envs=64),
        sampling=SamplingParams(max_new_tokens=4),
        credit=CreditConfig(estimator="rae"),
        loss=LossConfig(regularisers=(EntropyOptions(coef=0.01),)),
        optimizer=OptimizerConfig(lr=5e-4, schedule="linear"),
        eval=EvalConfig(num_episodes=200, kwargs={"opponent": "optimal"}),
    )
