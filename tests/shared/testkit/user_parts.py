"""Components of a training run in a user's own file, for test_user_parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentgym.credit.component import estimator
from agentgym.credit.table import TurnAdvantages, TurnTable
from agentgym.engine import Engine
from agentgym.plugins import Options
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.engines.component import engine
from agentgym.trainers.losses.component import correction, policy_loss, regulariser
from agentgym.trainers.placement.build import torch_engine


@policy_loss("log_clip", paper="ours", may_dual_clip=True)
def log_clip(ratio: Tensor, advantage: Tensor, high: float) -> tuple[Tensor, Tensor]:
    """Limit the ratio only from above."""
    return -advantage * ratio.clamp(max=high), ratio > high


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfOptions(Options):
    """Keys of the correction."""

    kind: str = "half"
    factor: float = 0.5


@correction("half", weighs=True)
def half(log_rho_N: Tensor, options: HalfOptions) -> Tensor:
    """Give every token the same weight."""
    return torch.full_like(log_rho_N, options.factor)


@correction("third", weighs=True)
def third(log_rho_N: Tensor) -> Tensor:
    """Give every token the same weight."""
    return torch.full_like(log_rho_N, 1 / 3)


@estimator("half_weights", granularity="turn")
def half_weights(table: TurnTable) -> TurnAdvantages:
    """Weigh every turn by a half, which the trainer does not take."""
    weight = np.full(len(table), 0.5)
    return TurnAdvantages(
        advantage=np.arange(len(table), dtype=np.float64), return_to_go=table.reward, loss_weight=weight
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatOptions(Options):
    """Keys of the regulariser."""

    kind: str = "flat"
    coef: float = 0.25


@regulariser("flat", options=FlatOptions)
def flat(logprob: Tensor, entropy: Tensor) -> Tensor:
    """Pull log-probabilities to -1, and entropy down."""
    return (logprob + 1).square() + entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedOptions(Options):
    """Keys of the engine."""

    kind: str = "noted"
    name: str = "engine.txt"


@engine("noted")
def noted(config: TrainConfig, model: Any, run_dir: Path, options: NotedOptions) -> Engine:
    """Create the embedded engine, and write a note about it into the run's folder."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / options.name).write_text("made", encoding="utf-8")
    return torch_engine(config, model)


@engine("broken")
def broken(model: Any) -> str:
    """Return an object that is not an engine."""
    return "no engine"
