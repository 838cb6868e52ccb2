"""Models on the meta device (shapes without memory), to count the weights of architectures without a formula."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any, Final

import torch
from transformers import AutoConfig

from agentgym.errors import ConfigError, UsageError, error_text
from agentgym.trainers.models.blocks import blocks_of
from agentgym.trainers.models.config import LoraSettings, ModelConfig
from agentgym.trainers.models.decoder import NEEDED, Sizes, WeightCounts
from agentgym.trainers.models.experts import too_many_ranks
from agentgym.trainers.models.head import trunk_of
from agentgym.trainers.models.model import add_lora
from agentgym.trainers.models.quantized import reading_of
from agentgym.trainers.models.reading import class_for, senses_of
from agentgym.trainers.types import CausalLM

_IN_LAYER: Final = re.compile(r".*?\.(\d+)\.")
"""Names of a layer's weights, with the layer's number."""


def meta_model(values: Mapping[str, Any], lora: LoraSettings) -> CausalLM:
    """Build the model of a ``config.json`` with its adapters on the meta device.

    Raises:
        UsageError: the model cannot be built; the message says why.
    """
    sizes = dict(values)
    try:
        shape = AutoConfig.for_model(sizes.pop("model_type"), **sizes)
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of peft's words with transformers
            model = class_for(shape).from_config(shape)
            model.tie_weights()  # which transformers 5.0 leaves out on this device
            return add_lora(model, lora, seed=0)
    except (ConfigError, UsageError):
        raise
    except Exception as error:  # of code that agentgym has not seen
        raise UsageError(f"the model cannot be built: {error_text(error)}") from error


def check_stored(values: Mapping[str, Any], config: ModelConfig) -> None:
    """Check that weights that a ``config.json`` describes as quantized can be read as ``model.lora.quantize`` says.

    Raises:
        ConfigError: they would be quantized twice.
        UsageError: they cannot be turned into floating point.
        MissingExtraError: the library of the quantization is not installed.
    """
    if any(holder.get("quantization_config") for holder in (values, values.get("text_config") or {})):
        sizes = dict(values)
        reading_of(AutoConfig.for_model(sizes.pop("model_type"), **sizes), config.lora.quantize, config.path)


def check_shared(model: CausalLM, num_ranks: int) -> None:
    """Check that ranks can share a model.

    Raises:
        ConfigError: it has no list of its layers, or it is a mixture of experts.
    """
    blocks_of(trunk_of(model))
    if reason := too_many_ranks(model, num_ranks):
        raise ConfigError(reason)


def count_built(model: CausalLM, *, trains_senses: bool = False) -> tuple[Sizes, WeightCounts]:
    """Return the sizes and the weight counts of a built model.

    Args:
        trains_senses: its vision tower and projector are trained, too.

    Raises:
        UsageError: its configuration lacks a size, as that of a model without attention does.
    """
    senses = {id(weight): weight for _, part in senses_of(model) for weight in part.parameters()}
    named = [(name, p.numel(), p.dim()) for name, p in model.named_parameters()]
    own = [row for row in named if ".lora_" not in row[0]]
    of_text = [(name, p.numel(), p.dim()) for name, p in model.named_parameters() if id(p) not in senses]
    weights = WeightCounts(
        own=sum(size for _, size, _ in own),
        adapters=sum(size for name, size, _ in named if ".lora_" in name),
        matrices=sum(size for name, size, dim in own if _IN_LAYER.match(name) and dim == 2),
        layer=sum(size for name, size, _ in of_text if (found := _IN_LAYER.match(name)) and found[1] == "0"),
        senses=sum(weight.numel() for weight in senses.values()),
        trains_senses=trains_senses and bool(senses),
    )
    return _sizes(model.config.get_text_config()), weights


def _sizes(config: Any) -> Sizes:
    """Return the sizes in a configuration, which may name them otherwise, as GPT-2's does."""
    names = (*NEEDED, "head_dim")
    values = {name: found for name in names if (found := getattr(config, name, None)) is not None}
    if "hidden_size" in values:
        values.setdefault("intermediate_size", 4 * values["hidden_size"])  # GPT-2's, if it is not given
    try:
        return Sizes.read(values | {"model_type": config.model_type})
    except KeyError as error:
        raise UsageError(
            f"model type {config.model_type!r} cannot be planned: its configuration has no {error.args[0]}"
        ) from error
