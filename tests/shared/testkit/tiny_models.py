"""Tiny random causal language models, one per family the trainers support, built from a config in milliseconds."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB_SIZE = 97
FAMILIES = ("qwen3", "qwen2", "llama", "llama3-rope-untied")

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def tiny_model(family: str = "qwen3", *, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Return a float32 model of ``family`` whose weights, biases and norms are all random, from ``seed``.

    Large random weights make the logits differ strongly between contexts, so that a mistake in a mask, a position or
    a bias cannot hide within a tolerance.
    """
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        **overrides,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = _build(family, sizes)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.uniform_(0.5, 1.5)
                else:
                    parameter.normal_(std=0.3)
    model.train(False)
    return model


def _build(family: str, sizes: dict[str, Any]) -> PreTrainedModel:
    if family == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**{"head_dim": 16, **sizes}))
    if family == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**sizes))
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**{"attention_bias": True, "mlp_bias": True, **sizes}))
    if family == "llama3-rope-untied":
        changes = {"tie_word_embeddings": False, "rope_parameters": _LLAMA3_ROPE}
        return LlamaForCausalLM(LlamaConfig(**{**sizes, **changes}))
    raise ValueError(f"no tiny model {family!r}; known: {', '.join(FAMILIES)}")
