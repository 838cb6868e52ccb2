"""What a model looks like, without its weights: from its folder, or for known names from what is written here."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentgym.errors import CorruptDataError, UsageError
from agentgym.trainers.config.train import ModelConfig
from agentgym.trainers.models.model import add_lora
from agentgym.trainers.models.sources import cached_model
from agentgym.trainers.models.tiny import network_shape
from agentgym.trainers.types import CausalLM, ModelShape

_QWEN2_5: Final = {"model_type": "qwen2", "max_position_embeddings": 32768}
_QWEN3: Final = {"model_type": "qwen3", "max_position_embeddings": 40960, "head_dim": 128}
KNOWN: Final[Mapping[str, Mapping[str, Any]]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": {
        **_QWEN2_5, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    "Qwen/Qwen2.5-1.5B-Instruct": {
        **_QWEN2_5, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
        "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    "Qwen/Qwen2.5-7B-Instruct": {
        **_QWEN2_5, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
    },
    "Qwen/Qwen3-4B": {
        **_QWEN3, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    "smollm2": {
        "model_type": "llama", "max_position_embeddings": 8192, "head_dim": 64, "hidden_size": 576,
        "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "vocab_size": 49152, "tie_word_embeddings": True,
    },
}  # fmt: skip
"""Sizes from the models' public ``config.json``; no network is needed to plan with them."""


def load_shape(config: ModelConfig) -> ModelShape:
    """A transformers configuration, without a network where the name is known or a folder.

    Raises:
        UsageError: there is no such folder, and the name is not one that is known here.
        CorruptDataError: the folder's configuration cannot be read.
    """
    if not config.path:
        return network_shape(config, config.vocab_size)
    if config.path in KNOWN:
        sizes = dict(KNOWN[config.path])
        return AutoConfig.for_model(sizes.pop("model_type"), **sizes)
    folder = cached_model(config.path)
    if folder is None or not (folder / "config.json").is_file():
        raise UsageError(
            f"model.path: no folder {config.path!r} with a config.json, and sizes are known only of "
            f"{', '.join(KNOWN)}; fetch the model first: agentgym model import SOURCE FOLDER"
        )
    try:
        shape: ModelShape = AutoConfig.from_pretrained(folder)
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise CorruptDataError(f"{folder}/config.json cannot be read: {type(error).__name__}: {first_line}") from error
    return shape


def meta_model(config: ModelConfig) -> CausalLM:
    """The model with its adapters, of tensors that have shapes and no memory.

    Raises:
        UsageError: it cannot be built so; the message says what of it.
    """
    shape = load_shape(config)
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of peft's words with transformers
            model = AutoModelForCausalLM.from_config(shape)  # type: ignore[no-untyped-call]
            return add_lora(model, config.lora, seed=0)
    except (ValueError, KeyError, RuntimeError) as error:
        raise UsageError(f"model {config.path or 'from scratch'} cannot be built: {error}") from error
