"""Memory of a training run, computed from a model's sizes.

The trainer uses float32 (:func:`agentgym.trainers.models.model.load_model`): weights, gradients and AdamW's two moments
take 4 bytes each per parameter. Weights that are quantized under adapters take less
(:mod:`agentgym.trainers.models.quantized`). FSDP2 divides all of them equally between ranks. Activations are counted in
the precision of the matrix products. The formulas do not include the allocator's unused blocks, kernel workspaces and
CUDA itself (together often 2 to 4 GiB), and temporary tensors within an operation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from agentgym.trainers.config.rank_limits import do_all_have_engines, do_gather, do_lend, episodes_of_rank
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.kinds import TRANSFERS, max_logits, uses_bfloat16
from agentgym.trainers.models.config import LoraSettings, ModelConfig
from agentgym.trainers.models.decoder import Sizes, WeightCounts
from agentgym.trainers.models.model_shapes import plan_model, read_values
from agentgym.trainers.models.processor import leaves_avx512_unused, multiplies_bfloat16
from agentgym.trainers.models.tower import tower_of

FLOAT32, BFLOAT16 = 4, 2
_BLOCK, _SCALE_BLOCK = 64, 256
NF4_BYTES: Final = 0.5 + 1 / _BLOCK + 4 / (_BLOCK * _SCALE_BLOCK)
"""Bytes of one weight in NF4: its 4 bits, its share of a block's scale (a byte), and of the scale of 256 such
scales (4 bytes)."""
NUM_LOGIT_TENSORS: Final = 5
"""Tensors of a piece of logits that exist at the peak: logits, scaled logits, log-softmax, and two gradients."""
NUM_SPARE_SLOTS: Final = 2
"""Cache rows of the embedded engine in addition to those of episodes: one for scoring, one for padding."""

PART_NAMES: Final = {
    "reference": "frozen copy for KL",
    "served_copy": "copy that is sampled from",
    "gathered": "layers gathered at one time",
    "cast_weights": "copies of the matrices in bfloat16",
    "activations": "activations of a microbatch",
    "vision": "activations of the vision tower",
    "engine_weights": "engine's weights",
    "kv_cache": "engine's keys and values",
    "roles": "models of other roles",
    "without_engine": "total without sampling",
}
"""Names of the parts of the memory footprint in the output, where they differ from the field names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes on a rank that samples, as the first one does. Other ranks need the same without copy and engine."""

    weights: int
    gradients: int
    optimizer: int
    """AdamW's two moments."""
    reference: int
    """The frozen reference of the KL penalty; for a policy with adapters, only the adapters."""
    served_copy: int
    """The unsharded copy to sample from while the trained model changes (async) or is sharded (FSDP), if the engine
    needs one."""
    gathered: int
    """Weights and gradients of the layers that FSDP has gathered at the same time."""
    cast_weights: int
    """Copies of the matrices in bfloat16, which autocast keeps from a micro-batch's forward pass to its gradient."""
    activations: int
    """Activations of one micro-batch that are stored for its gradient."""
    logits: int
    """Tensors of one piece of logits."""
    engine_weights: int
    kv_cache: int
    vision: int = 0
    """Activations of a trained vision tower, if every token of a micro-batch is a picture's; a frozen one has none."""
    roles: int = 0
    """Models of other roles (``roles.NAME``), with their training states and engines."""

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def without_engine(self) -> int:
        """Return the footprint of a rank that does not sample."""
        return self.total - self.served_copy - self.engine_weights - self.kv_cache


def layer_bytes(sizes: Sizes, lora: LoraSettings = LoraSettings(), *, in_bfloat16: bool = False) -> int:  # noqa: B008  (frozen)
    """Return how many bytes autograd stores for one token in one layer.

    * The two norms: input, normalised input and output (6 times hidden), and 2 scales.
    * Attention: queries, keys, values, output, and a log-sum per head.
    * The gated MLP: its two inputs, the activated gate and the product (4 times intermediate).
    * Norms of queries and keys: input and normalised input, with a scale per head.
    * Adapters: ``rank`` numbers for each matrix that has one.

    With products in bfloat16, norms and residuals stay float32, and autocast stores a copy of a norm's output for each
    of the five matrices that read it.
    """
    normed, attended = 4 * sizes.hidden + 2, 2 * sizes.heads + 2 * sizes.kv_heads
    of_heads, of_pairs = sizes.heads + sizes.kv_heads, sizes.num_heads + sizes.num_kv_heads
    of_adapters = lora.rank * len(lora.target_modules)
    if in_bfloat16:
        exact = normed + sizes.num_heads + (of_heads + of_pairs if sizes.has_qk_norm else 0)
        short = 5 * sizes.hidden + attended + 4 * sizes.intermediate + (of_heads if sizes.has_qk_norm else 0)
        return FLOAT32 * exact + BFLOAT16 * (short + of_adapters)
    kept = normed + 2 * sizes.hidden + attended + 4 * sizes.intermediate + sizes.num_heads
    if sizes.has_qk_norm:
        kept += 2 * of_heads + of_pairs
    return FLOAT32 * (kept + of_adapters)


def activation_bytes(
    sizes: Sizes,
    num_tokens: int,
    *,
    recompute: bool,
    lora: LoraSettings = LoraSettings(),  # noqa: B008
    in_bfloat16: bool = False,
) -> int:
    """Return the bytes of a micro-batch's stored activations below the vocabulary head.

    With ``recompute`` these are only the states between layers, and all of one layer while its gradient is computed.
    """
    of_layer = layer_bytes(sizes, lora, in_bfloat16=in_bfloat16)
    last_norm = FLOAT32 * (2 * sizes.hidden + 1)
    per_token = FLOAT32 * sizes.layers * sizes.hidden + of_layer if recompute else sizes.layers * of_layer
    return num_tokens * (per_token + last_norm)


def _copied(config: TrainConfig, weights: WeightCounts, *, is_copied: bool, on_gpu: bool) -> int:
    """Return the bytes of a whole copy of the weights; one that is sent from GPU to GPU is in the servers' dtype."""
    is_sent = on_gpu and config.engine.traits.is_served and config.engine.weight_sync in TRANSFERS
    if is_copied:
        return weight_bytes(config, weights)
    return BFLOAT16 * weights.own if is_sent else 0  # they change before the next update


def footprint(
    config: TrainConfig, sizes: Sizes, weights: WeightCounts, num_ranks: int, *, on_gpu: bool = False
) -> Footprint:
    """Return the memory of a run.

    Args:
        weights: numbers of weights of the trained model, with adapters.
        on_gpu: the run trains on a GPU.
    """
    in_bfloat16 = uses_bfloat16(config.loss.precision, is_gpu=on_gpu)
    is_lent = do_lend(config, num_ranks, on_gpu=on_gpu) or do_gather(config, num_ranks)
    is_copied = config.samples_from_copy(on_gpu=on_gpu) if num_ranks == 1 else not is_lent
    num_tokens = max(config.loss.microbatch_tokens, longest_row(config))
    num_shards = config.ranks.num_shards(num_ranks)
    num_own = -(-num_tokens // config.ranks.context_size) if num_ranks > 1 else num_tokens
    return Footprint(
        weights=_stored(config, weights, num_shards),
        gradients=-(-FLOAT32 * weights.trained // (1 if config.ranks.reduce == "update" else num_shards)),
        optimizer=-(-2 * FLOAT32 * weights.trained // num_shards),
        reference=-(-_reference_bytes(config, weights, num_ranks) // num_shards),
        served_copy=_copied(config, weights, is_copied=is_copied, on_gpu=on_gpu),
        gathered=_gathered(config, sizes, weights, in_bfloat16=in_bfloat16) if num_ranks > 1 else 0,
        cast_weights=_cast_weights(config, sizes, weights) if in_bfloat16 and num_ranks == 1 else 0,
        activations=activation_bytes(
            sizes,
            num_own,
            recompute=config.loss.recompute_activations,
            lora=config.model.lora,
            in_bfloat16=in_bfloat16,
        ),
        logits=NUM_LOGIT_TENSORS * FLOAT32 * min(max_logits(is_gpu=on_gpu), num_tokens * sizes.vocab),
        engine_weights=_engine_weights(config, sizes, weights, on_gpu=on_gpu),
        kv_cache=engine_cache(config, sizes, num_ranks, on_gpu=on_gpu) if config.engine.traits.is_embedded else 0,
        vision=_of_tower(config, weights, num_own, in_bfloat16=in_bfloat16),
    )


def _of_tower(config: TrainConfig, weights: WeightCounts, num_tokens: int, *, in_bfloat16: bool) -> int:
    """Return the bytes of a trained tower's activations for so many tokens of pictures."""
    tower = tower_of(read_values(config.model)) if weights.trains_senses else None
    if tower is None:
        return 0
    per_patch = tower.bytes_per_patch(recompute=config.loss.recompute_activations, in_bfloat16=in_bfloat16)
    return round(num_tokens * tower.patches_per_token * per_patch)


def longest_row(config: TrainConfig) -> int:
    """Return the number of tokens of the longest training row, which is one context window."""
    return config.context.window(config.model.max_context_tokens)


def engine_cache(config: TrainConfig, sizes: Sizes, num_ranks: int, *, on_gpu: bool = True) -> int:
    """Return the bytes of keys and values of episodes at full length.

    They are those of the embedded engine of a rank, which reserves them on a GPU, or of all vLLM servers together.
    """
    has_share = do_all_have_engines(config, num_ranks)
    num_rows = episodes_of_rank(config, num_ranks) if has_share else config.group.num_envs
    num_rows += NUM_SPARE_SLOTS if config.engine.traits.is_embedded else 0
    return num_rows * config.model.max_context_tokens * sizes.kv_bytes_per_token(engine_bytes(config, on_gpu=on_gpu))


def engine_bytes(config: TrainConfig, *, on_gpu: bool) -> int:
    """Return the bytes of a number in the engine; the embedded one takes float32 on a CPU if it may choose."""
    is_exact = config.engine.dtype == "float32" or (config.engine.dtype == "auto" and not on_gpu)
    return FLOAT32 if config.engine.traits.is_embedded and is_exact else BFLOAT16


def weight_bytes(config: TrainConfig, weights: WeightCounts) -> int:
    """Return the bytes of all weights with adapters; quantized matrices take about half a byte per weight."""
    if config.model.lora.quantize == "none":
        return FLOAT32 * weights.all
    return FLOAT32 * (weights.all - weights.matrices) + math.ceil(NF4_BYTES * weights.matrices)


def checkpoint_bytes(config: TrainConfig, weights: WeightCounts) -> int:
    """Return the bytes of one checkpoint over all ranks: weights, AdamW's moments, and the reference of a KL penalty.

    Of adapters over the weights of ``model.path`` only these are stored. Critics, replay buffers and outlines are not
    counted.
    """
    num_kept = weights.trained if config.model.trains_adapters_of_files else weights.all
    of_reference = weights.trained if config.needs_no_second_model else num_kept
    num_reference = of_reference if config.loss.needs_reference else 0
    return FLOAT32 * (num_kept + num_reference + 2 * weights.trained)


def _reference_bytes(config: TrainConfig, weights: WeightCounts, num_ranks: int) -> int:
    if config.loss.teacher:
        return FLOAT32 * plan_model(ModelConfig(path=config.loss.teacher))[1].all
    if not config.loss.needs_reference:
        return 0
    shares_base = config.model.lora.rank > 0 and num_ranks == 1  # a second model has adapters of its own alone
    if config.needs_no_second_model or shares_base:
        return FLOAT32 * weights.trained
    return weight_bytes(config, weights)


def _engine_weights(config: TrainConfig, sizes: Sizes, weights: WeightCounts, *, on_gpu: bool) -> int:
    """Return the bytes of the embedded engine's own weights.

    In float32 these are its fused matrices, because it shares the others with the model; else all weights. For a
    quantized model the engine has all matrices in floating point. On some processors it has packed ones of its own.
    """
    if not config.engine.traits.is_embedded:
        return 0
    if engine_bytes(config, on_gpu=on_gpu) == BFLOAT16:
        packed_head = 0 if on_gpu or not multiplies_bfloat16() else sizes.vocab * sizes.hidden
        return BFLOAT16 * (weights.own + packed_head)
    if config.model.lora.quantize != "none":
        return FLOAT32 * weights.matrices
    if not on_gpu and leaves_avx512_unused():
        return FLOAT32 * (weights.matrices + sizes.vocab * sizes.hidden)
    fused = sizes.heads + 2 * sizes.kv_heads + 2 * sizes.intermediate
    return FLOAT32 * sizes.layers * sizes.hidden * fused


def _cast_weights(config: TrainConfig, sizes: Sizes, weights: WeightCounts) -> int:
    """Return the bytes of the matrices' copies; of one layer if frozen matrices are cast again for the gradient."""
    is_by_layer = config.loss.recompute_activations and config.model.lora.rank > 0
    return BFLOAT16 * weights.matrices // (sizes.layers if is_by_layer else 1)


def _stored(config: TrainConfig, weights: WeightCounts, num_shards: int) -> int:
    """Return the bytes of a rank's weights; matrices of 4 bits are whole on every rank."""
    shared = FLOAT32 * (weights.all - weights.matrices)
    packed = weight_bytes(config, weights) - shared
    if config.model.lora.quantize == "none":
        return -(-(shared + packed) // num_shards)
    return packed - (-shared // num_shards)


def _gathered(config: TrainConfig, sizes: Sizes, weights: WeightCounts, *, in_bfloat16: bool) -> int:
    """Return the bytes of embedding, head and two layers (current and next), and of the gradients of head and layer.

    In bfloat16 ranks round their shards before they gather them, and reduce gradients in float32. Frozen weights under
    adapters have no gradients, and matrices of 4 bits are not gathered.
    """
    packed = 0 if config.model.lora.quantize == "none" else weights.matrices // sizes.layers
    root = weights.all - sizes.layers * weights.layer
    gathered = root + 2 * (weights.layer - packed)
    trained = weights.adapters // sizes.layers if weights.adapters else root + weights.layer
    return (BFLOAT16 if in_bfloat16 else FLOAT32) * gathered + FLOAT32 * trained
