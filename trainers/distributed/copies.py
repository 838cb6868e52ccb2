"""Whole copies of a sharded model, from which a rank samples or saves the model."""

from __future__ import annotations

import torch

from agentgym.trainers.distributed.sharding import whole
from agentgym.trainers.models.quantized import kept_state
from agentgym.trainers.types import CausalLM


@torch.no_grad()
def copy_whole(model: CausalLM, target: CausalLM | None) -> None:
    """Copy a sharded model's weights to a whole one, tensor by tensor. All ranks must call this.

    Args:
        target: the whole model; None on a rank that only takes part.
    """
    state = {} if target is None else target.state_dict()
    for name, tensor in kept_state(model).items():
        gathered = whole(tensor)
        if name in state:
            state[name].copy_(gathered)


@torch.no_grad()
def move_whole(model: CausalLM, target: CausalLM | None) -> None:
    """Give a whole model a sharded one's weights, unrounded, in the machine's memory. All ranks must call this.

    Args:
        target: the whole model; None on a rank that only takes part.
    """
    parameters = {} if target is None else dict(target.named_parameters())
    for name, tensor in kept_state(model).items():
        gathered = whole(tensor)
        if name in parameters:
            parameters[name].data = gathered.cpu()
