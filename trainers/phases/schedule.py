"""Learning rates as a function of the step."""

from __future__ import annotations

import math

from agentgym.trainers.config.optimizer import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int, num_steps: int) -> float:
    """Learning rate of a 0-based step: linear warm-up, then the schedule down to ``final_lr_share``.

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
