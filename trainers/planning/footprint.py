"""Memory that training takes, by arithmetic over a model's sizes.

The trainer keeps float32 (:func:`agentgym.trainers.models.model.load_model`), so weights, gradients and AdamW's two
moments take 4 bytes each per parameter, but weights that are quantized under adapters
(:mod:`agentgym.trainers.models.quantized`); FSDP2 cuts all of them into equal parts. Activations are counted in
float32. What no formula here sees: the allocator's unused blocks, kernels' workspaces and CUDA itself (together often
2 to 4 GiB), and the temporary tensors of one operation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from agentgym.trainers.config.train import LoraSettings, ModelConfig, TrainConfig
from agentgym.trainers.losses.config import MAX_LOGITS
from agentgym.trainers.planning.decoder import Sizes, Weights
from agentgym.trainers.planning.model_shapes import plan_model

FLOAT32, BFLOAT16 = 4, 2
_BLOCK, _SCALE_BLOCK = 64, 256
NF4_BYTES: Final = 0.5 + 1 / _BLOCK + 4 / (_BLOCK * _SCALE_BLOCK)
"""Bytes of one weight in NF4: its 4 bits, its share of a block's scale (a byte), and of the scale of 256 such
scales (4 bytes)."""
NUM_LOGIT_TENSORS: Final = 5
"""Of a piece of the vocabulary's head at the peak: logits, scaled, log-softmax, and the gradients of two of them."""
NUM_SPARE_SLOTS: Final = 2
"""Cache rows of the embedded engine beside those of episodes: one to score with, one for padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes on a rank that plays, as the first one does. Ranks that do not play hold the same without the engine."""

    weights: int
    gradients: int
    optimizer: int
    """AdamW's two moments."""
    reference: int
    """The frozen copy of a KL term; of a policy with adapters, of those alone."""
    served_copy: int
    """The whole copy that is sampled from while the trained one changes (async), or is cut up (FSDP)."""
    gathered: int
    """Weights and gradients of the layers that FSDP has put together at one time."""
    activations: int
    """Of one microbatch, kept for its gradient."""
    logits: int
    """Of one piece of the vocabulary's head."""
    engine_weights: int
    kv_cache: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def without_engine(self) -> int:
        """Return the footprint of a rank that does not play."""
        return self.total - self.engine_weights - self.kv_cache


def layer_numbers(sizes: Sizes, lora: LoraSettings = LoraSettings()) -> int:  # noqa: B008  (frozen)
    """Numbers that autograd keeps for one token in one layer.

    Two norms keep what comes in, the normalised, and what goes out to the projections (6 hidden, and 2 scales);
    attention queries, keys, values, its output and a log-sum per head; the gated MLP its two inputs, the activated gate
    and the product (4 intermediate). Norms of queries and keys keep what comes in and the normalised, with a scale per
    head. Adapters keep ``rank`` numbers for each matrix they sit on.
    """
    kept = 6 * sizes.hidden + 2 * sizes.heads + 2 * sizes.kv_heads + 4 * sizes.intermediate + 2 + sizes.num_heads
    if sizes.has_qk_norm:
        kept += 2 * sizes.heads + 2 * sizes.kv_heads + sizes.num_heads + sizes.num_kv_heads
    return kept + lora.rank * len(lora.target_modules)


def activation_bytes(sizes: Sizes, num_tokens: int, *, recompute: bool, lora: LoraSettings = LoraSettings()) -> int:  # noqa: B008
    """Return the bytes that are kept of a microbatch below the vocabulary's head.

    With ``recompute`` the states between layers alone, and all of one layer while its gradient is taken.
    """
    of_layer = layer_numbers(sizes, lora)
    last_norm = 2 * sizes.hidden + 1
    per_token = sizes.layers * sizes.hidden + of_layer if recompute else sizes.layers * of_layer
    return FLOAT32 * num_tokens * (per_token + last_norm)


def footprint(config: TrainConfig, sizes: Sizes, weights: Weights, num_ranks: int) -> Footprint:
    """Return the memory of a run.

    Args:
        weights: of the model as it is trained, adapters included.
    """
    whole = weight_bytes(config, weights)
    is_copied = num_ranks > 1 or not config.pipeline.is_on_policy
    num_tokens = max(config.loss.tokens_per_microbatch, longest_row(config))
    num_shards = config.ranks.num_shards(num_ranks)
    return Footprint(
        weights=-(-whole // num_shards),
        gradients=-(-FLOAT32 * weights.trained // (1 if config.ranks.reduce == "update" else num_shards)),
        optimizer=-(-2 * FLOAT32 * weights.trained // num_shards),
        reference=-(-_reference_bytes(config, weights) // num_shards),
        served_copy=whole if is_copied else 0,
        gathered=_gathered(sizes, weights) if num_ranks > 1 else 0,
        activations=activation_bytes(
            sizes, num_tokens, recompute=config.loss.recompute_activations, lora=config.model.lora
        ),
        logits=NUM_LOGIT_TENSORS * FLOAT32 * min(MAX_LOGITS, num_tokens * sizes.vocab),
        engine_weights=_engine_weights(config, sizes, weights),
        kv_cache=engine_cache(config, sizes) if config.engine.kind == "torch" else 0,
    )


def longest_row(config: TrainConfig) -> int:
    """Tokens of the longest training row: one context window."""
    return config.context.window(config.model.max_context_tokens)


def engine_cache(config: TrainConfig, sizes: Sizes) -> int:
    """Bytes of keys and values of all episodes at their longest; the embedded engine reserves that on a GPU."""
    num_rows = config.group.num_envs + (NUM_SPARE_SLOTS if config.engine.kind == "torch" else 0)
    return num_rows * config.model.max_context_tokens * sizes.kv_bytes_per_token(engine_bytes(config))


def engine_bytes(config: TrainConfig) -> int:
    """Bytes of a number in the engine; ``auto`` is bfloat16, as on a GPU."""
    return FLOAT32 if config.engine.kind == "torch" and config.engine.dtype == "float32" else BFLOAT16


def weight_bytes(config: TrainConfig, weights: Weights) -> int:
    """Return the bytes of all weights, adapters included; quantized matrices take half a byte a weight."""
    if config.model.lora.quantize == "none":
        return FLOAT32 * weights.all
    return FLOAT32 * (weights.all - weights.matrices) + math.ceil(NF4_BYTES * weights.matrices)


def checkpoint_bytes(config: TrainConfig, weights: Weights) -> int:
    """Return the bytes of one checkpoint, over all ranks: weights, AdamW's two moments, and the reference of a KL term.

    Of a quantized model the adapters alone are kept. Critics, replay buffers and outlines are not counted.
    """
    num_kept = weights.all if config.model.lora.quantize == "none" else weights.trained
    of_reference = weights.trained if config.needs_no_second_model else num_kept
    num_reference = of_reference if config.loss.regulariser("kl") else 0
    return FLOAT32 * (num_kept + num_reference + 2 * weights.trained)


def _reference_bytes(config: TrainConfig, weights: Weights) -> int:
    if config.loss.teacher:
        return FLOAT32 * plan_model(ModelConfig(path=config.loss.teacher))[1].all
    if not config.loss.regulariser("kl"):
        return 0
    return FLOAT32 * weights.trained if config.needs_no_second_model else weight_bytes(config, weights)


def _engine_weights(config: TrainConfig, sizes: Sizes, weights: Weights) -> int:
    """Return the bytes of the embedded engine's own weights.

    In float32 these are its fused matrices, the others being the model's; else all of them. Of a quantized model it
    holds all matrices in floating point.
    """
    if config.engine.kind != "torch":
        return 0
    if engine_bytes(config) == BFLOAT16:
        return BFLOAT16 * weights.own
    if config.model.lora.quantize != "none":
        return FLOAT32 * weights.matrices
    fused = sizes.heads + 2 * sizes.kv_heads + 2 * sizes.intermediate
    return FLOAT32 * sizes.layers * sizes.hidden * fused


def _gathered(sizes: Sizes, weights: Weights) -> int:
    """Embedding, head and two layers (this one and the next), and the gradients of the first and of a layer."""
    root = weights.all - sizes.layers * weights.layer
    return FLOAT32 * (root + 2 * weights.layer) + FLOAT32 * (root + weights.layer)
