"""Sharding of a model over ranks with torch's FSDP2, and gathering of its weights and optimizer state.

Gathered state has the same form as on one rank, so a checkpoint can be resumed with any number of ranks.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from agentgym.errors import ConfigError
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.kinds import Precision
from agentgym.trainers.models.blocks import blocks_of
from agentgym.trainers.models.head import trunk_of
from agentgym.trainers.models.model import copy_of_trained
from agentgym.trainers.models.precision import is_bfloat16
from agentgym.trainers.models.quantized import is_four_bit, is_quantized, kept_state
from agentgym.trainers.models.rehearsal import without_weights
from agentgym.trainers.types import CausalLM, HasParameters, StateDict, Trunk

Result = TypeVar("Result")
Module = TypeVar("Module", bound=HasParameters)


def shard(
    model: CausalLM, ranks: Ranks, precision: Precision = "float32", device: torch.device | None = None
) -> CausalLM:
    """Shard a model, so that every rank holds its part of each layer; on one rank return the model itself.

    With ``ranks.shard_size`` there are several copies of the model, each sharded over that many ranks.

    4-bit matrices are replicated on every rank, because their packed bytes cannot be split by rows. With bfloat16
    precision, shards are rounded before they are gathered, which halves the traffic. Gradients are reduced in float32.

    Args:
        device: device of the computation; by default that of the model.
    """
    if ranks.count == 1:
        return model
    device = device or next(model.parameters()).device
    rounded = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = rounded if is_bfloat16(precision, device) else MixedPrecisionPolicy()
    outline = None if is_quantized(model) else without_weights(model)
    return shard_over(model, outline, ranks, _mesh(device, ranks), policy)


@torch.no_grad()
def shard_from_first(model: CausalLM | None, ranks: Ranks, precision: Precision = "float32") -> CausalLM:
    """Shard the first rank's model over all ranks; the first rank sends the weights one tensor at a time.

    Args:
        model: the model on the first rank, which is not changed; None on the others.

    Raises:
        ConfigError: the model's matrices are quantized.
    """
    if model is not None and is_quantized(model):
        raise ConfigError(
            "a model whose folder holds quantized matrices cannot be cut up over ranks from the first one"
        )
    outline = ranks.of_first(None if model is None else without_weights(model))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    made = shard(outline, ranks, precision, device)
    give_memory(made, device)
    source = model.state_dict() if model is not None and ranks.is_main else {}
    for name, part in kept_state(made).items():
        sent = source[name] if ranks.is_main else torch.empty(part.shape, dtype=part.dtype, device=device)
        if isinstance(part, DTensor):
            part.copy_(distribute_tensor(sent, part.device_mesh, part.placements))
    return made


def _mesh(device: torch.device, ranks: Ranks) -> DeviceMesh:
    """Return the device mesh: all ranks in one dimension, or copies of the model by ranks of each copy."""
    size = ranks.config.num_shards(ranks.count)
    if size == ranks.count:
        return init_device_mesh(device.type, (ranks.count,))
    return init_device_mesh(device.type, (ranks.count // size, size), mesh_dim_names=("copies", "shards"))


def shard_over(
    model: CausalLM, outline: CausalLM | None, ranks: Ranks, mesh: DeviceMesh, policy: MixedPrecisionPolicy
) -> CausalLM:
    """Shard a model over a mesh of one or more ranks.

    Args:
        outline: the model without weights, from which copies are created; None for a model that is never copied.
    """
    sharded: Any = shard_module(model, blocks_of(trunk_of(model)), ranks, mesh, policy)
    if outline is not None:
        sharded.make_copy = lambda: shard_over(copy.deepcopy(outline), outline, ranks, mesh, policy)
        sharded.make_trunk = lambda: copy.deepcopy(trunk_of(outline))
        sharded.make_empty = lambda: _empty_copy(outline, next(sharded.parameters()).device)
    sharded.run_whole = types.MethodType(lambda self, work: work(self), sharded)
    register_fsdp_forward_method(sharded, "run_whole")
    return model


def shard_module(
    module: Module,
    layers: Iterable[torch.nn.Module],
    ranks: Ranks,
    mesh: DeviceMesh,
    policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),  # noqa: B008  (frozen)
) -> Module:
    """Shard each layer of a module, and the rest of the module as one more unit. All ranks must call this.

    Layers with common weights, as Zamba's have, are one unit: torch gathers a weight for one unit alone.
    """
    packed = {part.weight for part in module.modules() if is_four_bit(part)}
    for unit in _units(layers):
        of: Any = unit if len(unit) > 1 else unit[0]
        fully_shard(of, mesh=mesh, mp_policy=policy, ignored_params=packed)
    sharded: Any = module  # fully_shard makes it an FSDPModule, which attributes are added to
    fully_shard(sharded, mesh=mesh, mp_policy=policy, ignored_params=packed)
    sharded.ranks, sharded.mesh = ranks, mesh
    return module


def _units(layers: Iterable[torch.nn.Module]) -> list[list[torch.nn.Module]]:
    """Return layers, those together that have weights in common."""
    units: list[list[torch.nn.Module]] = []
    for layer in layers:
        own = set(layer.parameters())
        common = [unit for unit in units if any(weight in own for one in unit for weight in one.parameters())]
        others = [unit for unit in units if unit not in common]
        units = [*others, [*(one for unit in common for one in unit), layer]]
    return units


def sharded_copy(model: CausalLM) -> CausalLM:
    """Return a copy of a sharded model with the same sharding. No rank ever holds the whole model."""
    assert isinstance(model, FSDPModule)
    made: CausalLM = model.make_copy()  # type: ignore[attr-defined]
    give_memory(made, next(model.parameters()).device)
    copy_weights(model, made)
    return made


def empty_copy_of(model: CausalLM) -> CausalLM:
    """Return a copy of a sharded model whose parameters have no elements, on the model's device."""
    made: CausalLM = model.make_empty()  # type: ignore[attr-defined]
    return made


def _empty_copy(outline: CausalLM, device: torch.device) -> CausalLM:
    empty = {
        id(p): torch.nn.Parameter(torch.empty(0, dtype=p.dtype, device=device), requires_grad=False)
        for p in outline.parameters()
    }
    made: Any = copy.deepcopy(outline, dict[int, object](empty))
    return made.to(device).eval()  # type: ignore[no-any-return]


def give_memory(module: Any, device: torch.device) -> None:
    """Allocate the tensors of a sharded module that are on the meta device, without initialising them.

    Others, such as tables of positions, are moved to the device.
    """
    module._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device))


@torch.no_grad()
def copy_weights(source: HasParameters, target: HasParameters) -> None:
    """Copy the parameters of a module to a module with the same sharding."""
    for other, own in zip(parameters_of(source), parameters_of(target), strict=True):
        own.copy_(other)


def parameters_of(module: HasParameters) -> list[torch.nn.Parameter]:
    """Return a module's parameters; for a sharded module this rank's shards.

    A forward pass without gradients leaves weights outside the layers gathered; this reshards them first.
    """
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
    return list(module.parameters())


def trunk_for_copy(policy: CausalLM) -> Trunk:
    """Return a copy of the trunk, which shares frozen weights with the policy; for a sharded policy it is unsharded,
    without weights, on the meta device.
    """
    if isinstance(policy, FSDPModule):
        return policy.make_trunk()  # type: ignore[no-any-return, attr-defined]
    return copy_of_trained(trunk_of(policy))


def reduce_gradients(model: CausalLM, *, is_last: bool) -> None:
    """Choose, before the backward pass of a micro-batch, if ranks reduce gradients after it (``ranks.reduce``).

    Args:
        is_last: True for the last micro-batch of an optimizer step, after which all gradients are reduced.
    """
    if not isinstance(model, FSDPModule):
        return
    when = ranks_of(model).config.reduce
    model.set_requires_gradient_sync(is_last or when != "update")
    model.set_requires_all_reduce(is_last or when == "microbatch")


def mesh_of(model: FSDPModule) -> DeviceMesh:
    """Return the device mesh over which a model is sharded."""
    return model.mesh  # type: ignore[no-any-return, attr-defined]


def own_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor itself if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def ranks_of(model: CausalLM) -> Ranks:
    """Return the ranks over which a model is sharded."""
    return model.ranks if isinstance(model, FSDPModule) else Ranks()  # type: ignore[attr-defined]


def run_whole(model: CausalLM, work: Callable[[CausalLM], Result]) -> Result:
    """Call ``work(model)`` with the weights outside the layers gathered: embedding, final norm, head.

    FSDP gathers them only for the model's own ``forward``; code that calls parts of a model uses this function. All
    ranks must call it.
    """
    if not isinstance(model, FSDPModule):
        return work(model)
    result: Result = model.run_whole(work)  # type: ignore[attr-defined]
    return result


def whole(value: object) -> Any:
    """Gather the sharded tensors of a state dictionary, or a single tensor. All ranks must call this."""
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, Mapping):
        return {name: whole(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(whole(part) for part in value)
    return value


def load_optimizer(optimizer: torch.optim.Optimizer, state: StateDict) -> None:
    """Load an optimizer state, unsharded or sharded as the parameters are; each rank loads its shards.

    The optimizer keeps its own settings, such as its weight decay, since those of a branch may be others.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    of_parameter = {
        index: {name: _cut_like(parameters[index], value) for name, value in held.items()}
        for index, held in state["state"].items()
    }
    settings = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict({**state, "state": of_parameter})
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)


def _cut_like(own: Any, value: Any) -> object:
    is_whole = isinstance(value, Tensor) and not isinstance(value, DTensor)
    if isinstance(own, DTensor) and is_whole and value.shape == own.shape:
        return distribute_tensor(value.to(own.device), own.device_mesh, own.placements)
    return value
