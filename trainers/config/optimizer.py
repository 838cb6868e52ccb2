"""The optimizer's settings, which both phases of a run have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentgym.settings import Positive, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """An optimizer with warm-up and a schedule over the phase's steps."""

    kind: Literal["adamw", "muon"] = "adamw"
    """``muon`` makes the updates of hidden layers' matrices orthogonal, and leaves the other weights to AdamW. A model
    from scratch learns from fewer demonstrations by it; it takes rates of 2e-3 to 5e-3 there. One rank alone."""
    lr: Positive = 2e-4
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    final_lr_share: float = 0.1
    """Learning rate at the end of a linear or cosine schedule, as a share of ``lr``."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-5
    """Adam's epsilon. With 1e-8 the tiny gradients of words the policy never says are scaled up to whole steps, and a
    policy pushed away from its mistakes drifts into them; 1e-5 is what PPO implementations settled on."""
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        check_ranges(self)
