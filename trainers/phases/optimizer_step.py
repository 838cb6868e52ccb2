"""Optimizers, their steps on accumulated gradients with clipping and a scaled learning rate, and rate schedules."""

from __future__ import annotations

from collections.abc import Callable

import torch

from agentgym.trainers.distributed.clipping import clipped_norm
from agentgym.trainers.models.muon import Muon
from agentgym.trainers.models.optimizer import OptimizerConfig, learning_rate
from agentgym.trainers.types import CausalLM

AddGradient = Callable[[int], None]
"""Type of a function that adds another loss's gradient to the optimizer step with the given number."""


def clip_and_step(model: CausalLM, optimizer: torch.optim.Optimizer, max_grad_norm: float, lr_scale: float) -> float:
    """Clip the gradients, make an optimizer step, and return their norm before clipping.

    Args:
        lr_scale: factor of the learning rate in this step.

    Raises:
        RunStoppedError: the norm is not finite.
    """
    advice = "lower optimizer.lr or look at the latest rollouts"
    norm = clipped_norm(model.parameters(), max_grad_norm, "the gradient's norm", advice)
    _step_scaled(optimizer, lr_scale)
    return norm


def step_alone(
    model: CausalLM, optimizer: torch.optim.Optimizer, max_grad_norm: float, add_gradient: AddGradient
) -> float:
    """Make an optimizer step on the additional loss only, and return the gradient norm before clipping."""
    optimizer.zero_grad()
    add_gradient(0)
    return clip_and_step(model, optimizer, max_grad_norm, 1.0)


def _step_scaled(optimizer: torch.optim.Optimizer, scale: float) -> None:
    """Make one optimizer step with every learning rate scaled, then restore the rates."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * scale
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


# ----------------------------------------------------------------------------- learning rates as a function of the step


def set_rate(optimizer: torch.optim.Optimizer, config: OptimizerConfig, step: int, num_steps: int) -> float:
    """Set and return the learning rate of a 0-based step."""
    rate = learning_rate(config, step, num_steps)
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate


def make_optimizer(model: CausalLM, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the AdamW or Muon optimizer over a model's trained parameters."""
    if config.kind == "muon":
        return Muon(model, config)
    is_gpu = model.device.type == "cuda"  # where one kernel updates all tensors
    return torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=is_gpu or None,
    )
