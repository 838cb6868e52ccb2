"""Tiny models of every type that transformers loads as a causal language model."""

from __future__ import annotations

from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

KINDS: tuple[str, ...] = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
UNTRIED = {
    "gemma3n": "its class needs the package timm, also for text; gemma3n_text is tried",
    **dict.fromkeys(("musicgen", "musicgen_melody"), "their class for text is made of their decoder's configuration"),
}
"""Types that cannot be made of their own configuration here, and why."""
LARGEST = 15_000_000
"""Most weights of a model that is still tiny."""
_WIDTH, _LAYERS, _HEADS = 32, 4, 4
_SIZES: dict[str, Any] = {
    **dict.fromkeys(
        ("hidden_size", "n_embd", "d_model", "embedding_size", "embed_dim", "attention_hidden_size"), _WIDTH
    ),
    **dict.fromkeys(("word_embed_proj_dim", "dim_model", "lru_width", "mamba_d_ssm"), _WIDTH),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), _LAYERS
    ),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "decoder_attention_heads"), _HEADS),
    **dict.fromkeys(("encoder_attention_heads", "num_key_value_heads", "n_head_kv"), _HEADS),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "n_inner"), 48),
    **dict.fromkeys(("ffn_hidden_size", "ffn_intermediate_size", "shared_expert_intermediate_size"), 48),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size"), 16),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "num_experts_per_token", "moe_top_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "n_shared_experts"), 1),
    "vocab_size": 320,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "n_positions": 256,
    "n_ctx": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "sliding_window": 8,
}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
_LATENT |= {"qk_head_dim": 8, "index_topk": 8, "index_n_heads": 2, "index_head_dim": 16}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_d_state": 8}
_INKLING2 = {"unpadded_vocab_size": 320, "rel_extent": 8, "sliding_window_size": 8}
_INKLING2 |= {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_head_dim": 8}
_ZAMBA = {"attention_hidden_size": 64, "head_dim": 16}
_NO_LAYERS = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
_PER_LAYER = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 320}
_OWN: dict[str, dict[str, Any]] = {
    "bamba": _MAMBA,
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64},
    "granitemoehybrid": _MAMBA,
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 8},
    "codegen": {"rotary_dim": 4},
    "gptj": {"rotary_dim": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 8},
    "zaya": {"num_experts_per_tok": 1},
    "reformer": {
        **{"is_decoder": True, "attn_layers": ["local"] * 4, "local_attn_chunk_length": 8, "attention_head_size": 8},
        **{"axial_pos_embds_dim": (16, 16), "axial_pos_shape": (16, 16), "feed_forward_size": 48},
    },
    "xlm": {"emb_dim": 32, "n_words": 320},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "zamba": {
        **_ZAMBA,
        "num_hidden_layers": 6,
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid"] * 2,
    },
    "zamba2": {
        **{**_ZAMBA, "layers_block_type": ["linear_attention", "hybrid"] * 2, "n_mamba_heads": 8, "mamba_d_state": 8}
    },
    "blt": {"encoder_hash_byte_group_vocab": 50},
    "blt_local_encoder": {"hidden_size_global": 32},
    "blt_local_decoder": {"hidden_size_global": 32},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}}},
    "dbrx": {
        **{"n_layers": 4, "n_heads": 4, "attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8.0}},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots3_note_text": {"use_sliding_window": False},
    "dots3_note_vision_encoder": {"pyramid_num_routed": [-1] * 4, "adapter_in_dim": 32, "adapter_out_dim": 32},
    "dots3_note_audio_encoder": {"adapter_input_size": 32, "adapter_out_dim": 32},
    "gemma3n_text": {**_PER_LAYER, "num_kv_shared_layers": 0, "laurel_rank": 4, "altup_num_inputs": 2},
    "gemma4_text": {**_PER_LAYER, "global_head_dim": 8},
    "gemma4_assistant": {"text_config": {"model_type": "gemma4_text", **_NO_LAYERS}},
    "inkling2_text": _INKLING2,
    "inkling2_loop_text": _INKLING2,
    "qwen4_exp_text": {
        **{"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8},
        **{"indexer_compress_ratio": 4, "hc_lowrank": 8, "ngram_vocab_size_base": 50, "linear_num_value_heads": 4},
        **{"linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    },
}
"""Sizes of types whose sizes depend on one another."""


def config_of(kind: str) -> Any:
    """Return the configuration of a model type with small sizes in place of its defaults."""
    made, own = CONFIG_MAPPING[kind], _OWN.get(kind, {})
    begun = made(**{name: own[name] for name in own.keys() & set(made.sub_configs)})
    small = _small(begun.to_dict(), made)
    nested = {name: {**small.get(name, {}), **value} for name, value in own.items() if isinstance(value, dict)}
    return made(**{**small, **own, **nested})


def _small(values: dict[str, Any], made: Any) -> dict[str, Any]:
    """Return the sizes that a configuration has, small, and those of the configurations in it."""
    small = {name: value for name, value in _SIZES.items() if name in values}
    if "qk_rope_head_dim" in values:  # latent attention, whose heads have sizes of their own
        small = {**small, **{name: value for name, value in _LATENT.items() if name in values}}
        small.pop("head_dim", None)
    for name in getattr(made, "sub_configs", {}):
        inner = values.get(name)
        if isinstance(inner, dict) and inner.get("model_type") in CONFIG_MAPPING:
            kind = inner["model_type"]
            small[name] = {"model_type": kind, **_small(inner, CONFIG_MAPPING[kind]), **_OWN.get(kind, {})}
    return small


def model_of(kind: str, seed: int = 0) -> PreTrainedModel:
    """Return a float32 model of a model type with random matrices."""
    config = config_of(kind)
    maker: Any = AutoModelForCausalLM
    with torch.device("meta"):
        num = sum(weight.numel() for weight in maker.from_config(config).parameters())
    assert num <= LARGEST, f"{num:,} weights"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = maker.from_config(config, dtype=torch.float32)
    model.train(False)
    return model
