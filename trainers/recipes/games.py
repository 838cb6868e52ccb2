"""Recipes for games of two players, trained by self-play from scratch on a laptop."""

from __future__ import annotations

from agentgym.credit.compose import CreditConfig
from agentgym.engine import SamplingParams
from agentgym.rollout.group import GroupConfig
from agentgym.trainers.config.optimizer import OptimizerConfig
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EnvConfig, EvalConfig, ModelConfig, TrainConfig
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.options import KlOptions

FORM = SftConfig(
    num_demos=600,
    noise=1.0,
    num_epochs=2,
    batch_size=16,
    optimizer=OptimizerConfig(lr=3e-3, schedule="linear", warmup_steps=10, weight_decay=0.01, eps=1e-8),
)
"""Demonstrations of random legal moves, which teach the format of a move but nothing about the game."""

LEARNING = OptimizerConfig(lr=1e-3, schedule="linear", eps=1e-8)
"""Optimizer with Adam's own epsilon, as in the warm start; the default of 1e-5 suits better-trained policies."""

MAGNET = LossConfig(regularisers=(KlOptions(coef=0.2, estimator="k3+"),))
"""Plain policy gradients cycle in such games. A KL penalty to the warm start, which plays all legal moves alike, makes
them approach a quantal response equilibrium ("A Unified Approach to Reinforcement Learning, Quantal Response
Equilibria, and Two-Player Zero-Sum Games", Sokota et al., 2023). An entropy bonus would pay for impossible moves."""


def kuhn() -> TrainConfig:
    """Kuhn poker by self-play with SPIRAL's role-conditioned advantages; evaluated against an equilibrium."""
    return TrainConfig(
        recipe="kuhn",
        env=EnvConfig(id="agentgym/KuhnPoker-v0", kwargs={"opponent": "self", "explain": False, "max_errors": 0}),
        model=ModelConfig(hidden_size=64, num_layers=2, head_dim=16, vocab_size=1024, max_context_tokens=128),
        sft=FORM,
        num_steps=500,
        groups_per_step=128,
        group=GroupConfig(group_size=1, min_valid=1, num_envs=128),
        sampling=SamplingParams(max_new_tokens=4),
        credit=CreditConfig(estimator="rae"),
        loss=MAGNET,
        optimizer=LEARNING,
        eval=EvalConfig(num_episodes=200, kwargs={"opponent": "equilibrium"}),
        checkpoint_every=100,
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
        loss=MAGNET,
        optimizer=LEARNING,
        eval=EvalConfig(num_episodes=200, kwargs={"opponent": "optimal"}),
    )
