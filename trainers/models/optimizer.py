"""Settings of an optimizer; supervised fine-tuning and RL have one each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from agentgym.errors import ConfigError
from agentgym.settings import Natural, NonNegative, Positive, Settings, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig(Settings):
    """An optimizer with warm-up and a schedule over the phase's steps."""

    kind: Literal["adamw", "muon"] = "adamw"
    """``muon`` orthogonalises the updates of the hidden layers' matrices and uses AdamW for the other weights. A model
    from scratch needs fewer demonstrations with it, at learning rates of 2e-3 to 5e-3. It works on one rank only."""
    lr: Positive = 2e-4
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Natural = 0
    final_lr_share: NonNegative = 0.1
    """Learning rate at the end of a linear or cosine schedule, as a share of ``lr``."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: NonNegative = 1e-5
    """Adam's epsilon. With 1e-8, Adam scales the tiny gradients of tokens that the policy never samples to full steps,
    and a policy that negative advantages push away from its mistakes drifts towards those tokens. PPO implementations
    use 1e-5."""
    weight_decay: NonNegative = 0.0
    max_grad_norm: Positive = 1.0
    """Largest norm of the gradient; a larger one is scaled down to it. 1e9 leaves every gradient as it is."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas must be at least 0 and below 1, got {list(self.betas)}")


def learning_rate(config: OptimizerConfig, step: int, num_steps: int) -> float:
    """Return the learning rate of a 0-based step: linear warm-up, then the schedule down to ``final_lr_share``.

    Example:
        >>> config = OptimizerConfig(lr=1.0, schedule="linear", warmup_steps=2, final_lr_share=0.0)
        >>> [learning_rate(config, step, 6) for step in (0, 1, 2, 4)]
        [0.5, 1.0, 1.0, 0.5]
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, num_steps - config.warmup_steps)
    match config.schedule:
        case "linear":
            share = 1 - progress
        case "cosine":
            share = 0.5 * (1 + math.cos(math.pi * progress))
        case _:
            return config.lr
    return config.lr * (config.final_lr_share + (1 - config.final_lr_share) * share)
