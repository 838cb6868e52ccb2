"""A module's own matrix and bias, with LoRA adapters merged."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from agentgym.errors import ConfigError
from agentgym.trainers.models.quantized import dequantized, is_four_bit


def merged_weight(module: Any) -> Tensor:
    """Return the matrix of a module: its own tensor, or a new merged tensor if adapters are active."""
    if hasattr(module, "modules_to_save"):  # peft's fully trained copy of a module
        is_active = module.active_adapters and not module.disable_adapters
        return merged_weight(module.modules_to_save[module.active_adapters[0]] if is_active else module.original_module)
    if not hasattr(module, "base_layer"):
        if is_four_bit(module):
            return dequantized(module)
        weight: Tensor = module.weight.detach()
        if not weight.is_floating_point():
            raise ConfigError(f"the torch engine reads floating-point weights; {type(module).__name__} is quantized")
        return weight
    merged = merged_weight(module.base_layer)
    if module.disable_adapters:
        return merged
    for adapter in module.active_adapters:
        if adapter in module.merged_adapters or not _has_adapter(module, adapter):
            continue
        merged = merged + module.get_delta_weight(adapter).detach().to(merged.dtype)
    return merged


def _has_adapter(module: Any, adapter: str) -> bool:
    """Return True if ``adapter`` is a LoRA adapter on this module; raise ConfigError for other kinds."""
    if not hasattr(module, "lora_A"):
        raise ConfigError(f"the torch engine merges LoRA adapters only, not {type(module).__name__}")
    if adapter in getattr(module, "lora_variant", {}):
        raise ConfigError(f"the torch engine merges plain LoRA only; adapter {adapter!r} is a variant such as DoRA")
    if adapter in module.lora_A:
        if module.lora_B[adapter].bias is not None:
            raise ConfigError(f"the torch engine does not merge the LoRA bias of adapter {adapter!r}")
        return True
    return adapter in getattr(module, "lora_embedding_A", {})


def merged_bias(module: object) -> Tensor | None:
    """Return a module's bias; None if it has none."""
    base = getattr(module, "base_layer", module)
    bias: Tensor | None = getattr(base, "bias", None)
    return None if bias is None else bias.detach()


def merged_other(module: Any, name: str) -> Tensor:
    """Return a module's tensor of another name, such as a bias, sinks of attention or the matrices of experts.

    peft wraps a module of experts once for each of its adapted tensors.
    """
    if not hasattr(module, "base_layer"):
        tensor: Tensor = getattr(module, name).detach()
        return tensor
    merged = merged_other(module.base_layer, name)
    if getattr(module, "parameter_name", None) == name and not module.disable_adapters:
        for adapter in module.active_adapters:
            if adapter in module.lora_A and adapter not in module.merged_adapters:
                merged = merged + module.get_delta_weight(adapter).detach()
    return merged
