"""Base weights in 4 bits under adapters: QLoRA, with bitsandbytes.

"QLoRA: Efficient Finetuning of Quantized LLMs" (Dettmers et al., 2023): the matrices of the layers are stored as 4-bit
NormalFloat in blocks of 64 with doubly quantized scales. They are never trained, and are converted back to floating
point for each multiplication. Embedding, head and norms are not quantized.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor

from agentgym.errors import CorruptDataError, require_extra
from agentgym.trainers.config.stages import Quantization
from agentgym.trainers.types import CausalLM, StateDict


def quantization_config(kind: Quantization) -> object:
    """Return the quantization argument of transformers' ``from_pretrained``; None for unquantized weights.

    Raises:
        MissingExtraError: bitsandbytes is not installed.
    """
    if kind == "none":
        return None
    require_extra("model.lora.quantize=nf4", "qlora", "bitsandbytes")
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )


def is_quantized(model: CausalLM) -> bool:
    """Return True if a model's matrices are quantized."""
    return bool(getattr(getattr(model, "config", None), "quantization_config", None))


class FourBitModule(Protocol):
    """A module of bitsandbytes that stores its matrix in 4 bits."""

    weight: Any
    """The packed matrix, with the attributes ``data`` and ``quant_state``."""
    support_avx512bf16_for_cpu: bool


def is_four_bit(module: object) -> TypeGuard[FourBitModule]:
    """Return True if a module stores its matrix in 4 bits. This works without bitsandbytes."""
    if hasattr(module, "base_layer"):  # an adapter of peft, which exposes the matrix of the layer below
        return False
    return hasattr(getattr(module, "weight", None), "quant_state")


def dequantized(module: FourBitModule) -> Tensor:
    """Return the matrix ``[out, in]`` of a 4-bit module in float32."""
    from bitsandbytes.functional import dequantize_4bit

    matrix: Tensor = dequantize_4bit(module.weight.data, module.weight.quant_state)
    return matrix.float()


def keep_exact(model: CausalLM) -> CausalLM:
    """Keep a model's 4-bit modules unchanged on a CPU, and return the model.

    Otherwise bitsandbytes repacks the weights in the first forward pass without gradients, and rounds their scales to
    bfloat16.
    """
    for module in model.modules():
        if is_four_bit(module):
            module.support_avx512bf16_for_cpu = False
    return model


def kept_state(model: CausalLM) -> StateDict:
    """Return a model's weights by name; of one with quantized matrices the adapters alone.

    A parameter with several names (tied embeddings) occurs once.
    """
    state: StateDict = model.state_dict()
    if is_quantized(model):
        return {name: value for name, value in state.items() if ".lora_" in name}
    own = {name for name, _ in model.named_parameters()}
    aliases = {name for name, _ in model.named_parameters(remove_duplicate=False)} - own
    return {name: value for name, value in state.items() if name not in aliases}


def stored_state(model: CausalLM, *, has_base: bool) -> StateDict:
    """Return a model's state for a checkpoint: its :func:`kept_state`, or the adapters alone."""
    state = kept_state(model)
    return state if has_base else {name: value for name, value in state.items() if ".lora_" in name}


def check_same_tensors(own: StateDict, found: StateDict) -> None:
    """Check that a checkpoint has the same tensor names as a model.

    Raises:
        CorruptDataError: the checkpoint belongs to another model, or to one with other adapters.
    """
    if set(own) != set(found):
        raise CorruptDataError(
            "the checkpoint holds other weights or adapters than the model has; resume with the run's own config"
        )
