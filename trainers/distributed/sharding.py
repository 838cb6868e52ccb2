"""A model cut up over ranks by torch's FSDP2, and its weights and optimizer put together again.

What is put together has the form it has on one rank, so a checkpoint of any number of ranks goes on at any other.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.models.precision import Precision, is_bfloat16
from agentgym.trainers.scoring.hidden import trunk_of
from agentgym.trainers.types import CausalLM

Result = TypeVar("Result")


def shard(model: CausalLM, ranks: Ranks, precision: Precision = "float32") -> CausalLM:
    """The model with every rank holding its part of each layer; the model itself on one rank.

    In bfloat16, parts are rounded before they are gathered, which halves what travels. Gradients are added up in
    float32.
    """
    if ranks.count == 1:
        return model
    device = next(model.parameters()).device
    mesh = init_device_mesh(device.type, (ranks.count,))
    rounded = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = rounded if is_bfloat16(precision, device) else MixedPrecisionPolicy()
    for layer in trunk_of(model).layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    sharded: Any = model  # fully_shard makes it an FSDPModule, which the methods below are added to
    fully_shard(sharded, mesh=mesh, mp_policy=policy)
    sharded.ranks = ranks
    sharded.run_whole = types.MethodType(lambda self, work: work(self), sharded)
    register_fsdp_forward_method(sharded, "run_whole")
    return model


def ranks_of(model: CausalLM) -> Ranks:
    """Those that a model is cut up over."""
    return model.ranks if isinstance(model, FSDPModule) else Ranks()  # type: ignore[attr-defined]


def run_whole(model: CausalLM, work: Callable[[CausalLM], Result]) -> Result:
    """``work(model)`` with the weights in place that belong to no layer: embedding, last norm, head.

    FSDP does that for a model's own ``forward``; what calls parts of a model goes through here. All ranks must.
    """
    if not isinstance(model, FSDPModule):
        return work(model)
    result: Result = model.run_whole(work)  # type: ignore[attr-defined]
    return result


def whole(value: Any) -> Any:
    """A state dictionary, or a tensor, with what is cut up put together; all ranks must ask."""
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, Mapping):
        return {name: whole(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(whole(part) for part in value)
    return value


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Put an optimizer state, whole or sharded as the parameters are, into an optimizer, each rank its part."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    of_parameter = {
        index: {name: _cut_like(parameters[index], value) for name, value in held.items()}
        for index, held in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": of_parameter})


def _cut_like(own: Any, value: Any) -> Any:
    is_whole = isinstance(value, Tensor) and not isinstance(value, DTensor)
    if isinstance(own, DTensor) and is_whole and value.shape == own.shape:
        return distribute_tensor(value.to(own.device), own.device_mesh, own.placements)
    return value
