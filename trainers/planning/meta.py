"""Models on the meta device (shapes without memory), to count the weights of architectures without a formula."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentgym.errors import UsageError
from agentgym.trainers.config.train import LoraSettings
from agentgym.trainers.models.model import add_lora
from agentgym.trainers.planning.decoder import Sizes, Weights
from agentgym.trainers.types import CausalLM


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
            model = AutoModelForCausalLM.from_config(shape)  # type: ignore[no-untyped-call]
            return add_lora(model, lora, seed=0)
    except (ValueError, KeyError, RuntimeError) as error:
        raise UsageError(f"the model cannot be built: {error}") from error


def count_built(model: CausalLM) -> tuple[Sizes, Weights]:
    """Return the sizes and the weight counts of a built model."""
    named = [(name, p.numel(), p.dim()) for name, p in model.named_parameters()]
    own = [row for row in named if ".lora_" not in row[0]]
    weights = Weights(
        own=sum(size for _, size, _ in own),
        adapters=sum(size for name, size, _ in named if ".lora_" in name),
        matrices=sum(size for name, size, dim in own if ".layers." in name and dim == 2),
        layer=sum(size for name, size, _ in named if ".layers.0." in name),
    )
    return Sizes.read(model.config.get_text_config().to_dict()), weights
