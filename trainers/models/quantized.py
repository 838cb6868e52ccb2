"""Quantized weights: those of files, which are converted to floating point, and QLoRA's 4 bits under adapters.

"QLoRA: Efficient Finetuning of Quantized LLMs" (Dettmers et al., 2023): the matrices of the layers are stored as 4-bit
NormalFloat in blocks of 64 with doubly quantized scales. They are never trained, and are converted back to floating
point for each multiplication. Embedding, head and norms are not quantized.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeGuard

import torch
import transformers
from packaging.version import Version
from torch import Tensor

from agentgym.errors import ConfigError, CorruptDataError, UsageError, require_extra
from agentgym.trainers.models.config import Quantization
from agentgym.trainers.types import CausalLM, ModelShape, StateDict

_SINCE: Final = {"mxfp4": "5.23.0", "fp8": "5.24.0"}
"""First release of transformers whose reading of a quantization passes the tests, of those tried from 5.0 to 5.24."""


@dataclass(frozen=True, slots=True)
class WeightReading:
    """The way in which the weights of a model are read."""

    method: str = ""
    """Quantization of the stored weights; empty for floating point."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Further arguments of transformers' ``from_pretrained``."""
    is_converted: bool = False
    """True if the weights are quantized in the files and in floating point in memory."""


def reading_of(config: ModelShape, quantize: Quantization, path: str | Path) -> WeightReading:
    """Return the way in which a model's weights are read, and change its configuration accordingly.

    An argument ``quantization_config``, None included, would make transformers forget the files' own, and read packed
    numbers as weights.

    Args:
        config: the model's transformers configuration.
        quantize: storage of the matrices if they are not trained.
        path: the model's name in messages.

    Raises:
        ConfigError: the weights are quantized already, and ``quantize`` would do it again.
        UsageError: transformers cannot turn them into floating point.
        MissingExtraError: bitsandbytes is not installed.
    """
    holder = config if getattr(config, "quantization_config", None) else config.get_text_config()
    stored = getattr(holder, "quantization_config", None)
    if not stored:
        return WeightReading() if quantize == "none" else WeightReading(options={"quantization_config": _four_bits()})
    values = dict(stored if isinstance(stored, Mapping) else stored.to_dict())
    method = method_of(values)
    if quantize != "none" and not _is_nf4(values):
        raise ConfigError(
            f"model.lora.quantize={quantize}: the weights of {path} are quantized already ({method}); name the model's "
            "checkpoint in floating point, or leave the setting out"
        )
    check_can_be_read(values, path)
    if method.startswith("bitsandbytes"):
        require_extra(f"the model {path}, which is quantized by bitsandbytes,", "qlora", "bitsandbytes")
        values |= {"bnb_4bit_compute_dtype": "float32"} if values.get("load_in_4bit") else {}
    else:
        _check_release(method, path)
        values["dequantize"] = True
    holder.quantization_config = values
    return WeightReading(method, {}, is_converted=quantize == "none")


def _check_release(method: str, path: str | Path) -> None:
    """Check that the installed transformers turns a quantization into floating point, and saves the result.

    Raises:
        UsageError: it is too old; 5.6 to 5.22 read the experts of gpt-oss as other numbers, without a word.
    """
    needed = _SINCE.get(method, "0")
    if Version(transformers.__version__) < Version(needed):
        raise UsageError(
            f"the weights of {path} are quantized ({method}), which transformers {transformers.__version__} does not "
            f"read and save correctly: install transformers {needed} or later, or name a checkpoint in floating point"
        )


def method_of(stored: Mapping[str, Any]) -> str:
    """Return the name of a quantization, as ``quantization_config`` of a ``config.json`` describes it.

    Example:
        >>> method_of({"quant_method": "bitsandbytes", "load_in_8bit": True}), method_of({"quant_method": "fp8"})
        ('bitsandbytes, 8 bits', 'fp8')
    """
    bits = [number for number in (8, 4) if stored.get(f"load_in_{number}bit")]
    name = str(stored.get("quant_method") or ("bitsandbytes" if bits else "of no named method"))
    return f"{name}, {bits[0]} bits" if bits else name


def _is_nf4(stored: Mapping[str, Any]) -> bool:
    return bool(stored.get("load_in_4bit")) and stored.get("bnb_4bit_quant_type") == "nf4"


def check_can_be_read(stored: Mapping[str, Any], path: str | Path) -> None:
    """Check that transformers can turn quantized weights into floating point.

    Raises:
        UsageError: it cannot; the message names the quantization.
    """
    method = method_of(stored)
    if method.startswith("bitsandbytes, "):
        return
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    kind = AUTO_QUANTIZATION_CONFIG_MAPPING.get(method)
    if kind is None or "dequantize" not in inspect.signature(kind).parameters:
        raise UsageError(
            f"the weights of {path} are quantized ({method}), and transformers cannot turn these into floating point: "
            "name the model's checkpoint in floating point (float32, bfloat16 or float16)"
        )


def dequantize(model: CausalLM, how: WeightReading) -> CausalLM:
    """Return a loaded model with all weights in floating point, if they are not to stay quantized."""
    made: Any = model
    return made.dequantize() if how.is_converted and is_quantized(made) else model


def _four_bits() -> object:
    """Return transformers' settings for 4-bit NormalFloat.

    Raises:
        MissingExtraError: bitsandbytes is not installed.
    """
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
