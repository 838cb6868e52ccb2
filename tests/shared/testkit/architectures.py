"""Tiny random models of many transformers architectures."""

from __future__ import annotations

from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from agentgym.trainers.models.blocks import blocks_of
from agentgym.trainers.models.head import trunk_of
from agentgym.trainers.models.model import is_linear
from agentgym.trainers.models.reading import class_for
from testkit.tiny_models import VOCAB_SIZE

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_GDN = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
_OWN_HEADS = ("deepseek_v3", "deepseek_v32", "falcon")
"""Architectures that compute the head size themselves and take no ``head_dim``."""

BATCHED: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 9},
    "gemma": {},
    "gemma2": {"sliding_window": 8, "query_pre_attn_scalar": 8},
    "gemma3_text": {"sliding_window": 8, "query_pre_attn_scalar": 8, "layer_types": _MIXED},
    "phi": {},
    "phi3": {},
    "cohere": {},
    "cohere2": {"sliding_window": 8, "layer_types": _MIXED},
    "granite": {"logits_scaling": 0.5},
    "glm4": {},
    "glm4_moe": {
        **_EXPERTS,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
    "olmo2": {},
    "smollm3": {},
    "qwen3_moe": {**_EXPERTS, "num_experts": 4},
    "gpt_oss": {"sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": _MIXED},
    "deepseek_v3": {
        **_EXPERTS,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
        "num_key_value_heads": 4,
    },
    "gpt2": {},
    "gpt_neox": {},
}
"""Sizes of architectures in which all layers are attention layers."""
ROW_BY_ROW: dict[str, dict[str, Any]] = {
    "lfm2": {"full_attn_idxs": [1, 3], "block_auto_adjust_ff_dim": False, "conv_L_cache": 3},
    "qwen3_5_text": _GDN,
    "nemotron_h": {},
    "bloom": {},
    "gpt_neo": {"window_size": 8, "attention_types": [[["global", "local"], 2]]},
}
"""Sizes of architectures with other layers, or with positions that an attention mask does not determine."""
ENCODERS: dict[str, dict[str, Any]] = {"bert": {}, "roberta": {}}
"""Sizes of architectures that attend to later tokens, and that transformers loads as causal language models."""
BY_NAME: dict[str, dict[str, Any]] = {
    "falcon": {"alibi": False},
    "deepseek_v32": {**BATCHED["deepseek_v3"], "index_topk": 8, "index_n_heads": 2, "index_head_dim": 16},
}
"""Sizes of architectures that compute something else where torch's attention has another name."""


_TEXT: dict[str, Any] = {**_SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
_MROPE = {**_TEXT["rope_parameters"], "mrope_section": [2, 1, 1]}
_VISION: dict[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_heads": 4},
    **{"depth": 2, "embed_dim": 32, "image_size": 28, "patch_size": 14, "out_hidden_size": 32, "spatial_merge_size": 2},
}
_QWEN_IDS = {"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7, "vision_end_token_id": 8}
WITH_VISION: dict[str, dict[str, Any]] = {
    "qwen3_vl": {
        "text_config": {**_TEXT, "rope_parameters": {**_MROPE, "mrope_interleaved": True}},
        "vision_config": {**_VISION, "deepstack_visual_indexes": [0]},
        **_QWEN_IDS,
    },
    "qwen2_5_vl": {"text_config": {**_TEXT, "rope_parameters": _MROPE}, "vision_config": _VISION, **_QWEN_IDS},
    "mistral3": {
        "text_config": {**_TEXT, "model_type": "mistral"},
        "vision_config": {**_VISION, "model_type": "pixtral"},
        "image_token_index": 5,
    },
    "gemma3": {
        "text_config": {**_SIZES, "sliding_window": 8, "query_pre_attn_scalar": 8},
        "vision_config": _VISION,
        "image_token_index": 5,
        "mm_tokens_per_image": 4,
    },
    "llava": {
        "text_config": {**_TEXT, "model_type": "llama"},
        "vision_config": {**_VISION, "model_type": "clip_vision_model"},
        "image_token_index": 5,
    },
}
"""Configurations of models that also see."""


def seeing_model(kind: str, **changes: Any) -> PreTrainedModel:
    """Return a float32 model of a model type that also sees, with random matrices."""
    values = WITH_VISION[kind]
    config = CONFIG_MAPPING[kind](**{**values, "text_config": {**values["text_config"], **changes}})
    return _made(class_for(config), config, seed=0)


def model_of(kind: str, *, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Return a float32 model of a model type with random matrices, large enough that mistakes change the output."""
    sizes = {**_SIZES, **{**BATCHED, **ROW_BY_ROW, **ENCODERS, **BY_NAME}[kind], **changes}
    if kind in _OWN_HEADS:
        del sizes["head_dim"]
    return _made(AutoModelForCausalLM, CONFIG_MAPPING[kind](**sizes), seed)


def _made(maker: Any, config: Any, seed: int) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = maker.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim > 1 and "conv" not in name:
                    parameter.normal_(std=0.2)
    model.train(False)
    return model


_MAMBA = {"nemotron_h": {"out_proj"}}
"""Layers that newer releases of peft refuse."""


def linear_layers(kind: str) -> tuple[str, ...]:
    """Return the names of the matrices in a block of a model type, which adapters can be on."""
    model: Any = seeing_model(kind) if kind in WITH_VISION else model_of(kind)
    blocks = blocks_of(trunk_of(model))
    named = (pair for block in blocks for pair in block.named_modules())
    return tuple(sorted({at.rpartition(".")[2] for at, part in named if is_linear(part)} - _MAMBA.get(kind, set())))
