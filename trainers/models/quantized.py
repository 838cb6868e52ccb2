"""Base weights in 4 bits under adapters: QLoRA, by bitsandbytes.

"QLoRA: Efficient Finetuning of Quantized LLMs" (Dettmers et al., 2023): the matrices of the layers are kept as 4-bit
NormalFloat in blocks of 64 with doubly quantized scales, are never trained, and are put back into floating point for
each multiplication. Embedding, head and norms stay as they are.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor

from agentgym.errors import CorruptDataError, require_extra
from agentgym.trainers.config.train import Quantization
from agentgym.trainers.types import CausalLM, StateDict


def quantization_config(kind: Quantization) -> object:
    """Return the argument of transformers' ``from_pretrained``; None for weights as they are.

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
    """Return True if a model's matrices are kept in fewer bits."""
    return bool(getattr(getattr(model, "config", None), "quantization_config", None))


class FourBitModule(Protocol):
    """A module of bitsandbytes that keeps its matrix in 4 bits."""

    weight: Any
    """Has ``data`` and ``quant_state``."""
    support_avx512bf16_for_cpu: bool


def is_four_bit(module: object) -> TypeGuard[FourBitModule]:
    """Return True if a module keeps its matrix in 4 bits; bitsandbytes need not be installed to ask."""
    if hasattr(module, "base_layer"):  # of peft, which shows the matrix of what it wraps
        return False
    return hasattr(getattr(module, "weight", None), "quant_state")


def dequantized(module: FourBitModule) -> Tensor:
    """The matrix ``[out, in]`` that a 4-bit module multiplies by, in float32."""
    from bitsandbytes.functional import dequantize_4bit

    matrix: Tensor = dequantize_4bit(module.weight.data, module.weight.quant_state)
    return matrix.float()


def keep_exact(model: CausalLM) -> CausalLM:
    """The model, its 4-bit modules as they are on a CPU too.

    There bitsandbytes would repack weights at the first forward without a gradient, and round their scales to bfloat16.
    """
    for module in model.modules():
        if is_four_bit(module):
            module.support_avx512bf16_for_cpu = False
    return model


def kept_state(model: CausalLM) -> StateDict:
    """Return what a checkpoint keeps of a model: all of it, or the adapters over quantized weights, which never change.

    A parameter with several names (tied embeddings) is there once.
    """
    state: StateDict = model.state_dict()
    if is_quantized(model):
        return {name: value for name, value in state.items() if ".lora_" in name}
    own = {name for name, _ in model.named_parameters()}
    aliases = {name for name, _ in model.named_parameters(remove_duplicate=False)} - own
    return {name: value for name, value in state.items() if name not in aliases}


def check_same_tensors(own: StateDict, found: StateDict) -> None:
    """Check that a checkpoint names the tensors that a model has.

    Raises:
        CorruptDataError: it is that of another model, or of one with other adapters.
    """
    if set(own) != set(found):
        raise CorruptDataError(
            "the checkpoint holds other weights or adapters than the model has; resume with the run's own config"
        )
