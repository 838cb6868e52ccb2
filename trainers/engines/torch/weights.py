"""Conversion of a transformers model to the fused matrices of a fast forward pass.

Fused matrices are copies: one for the query, key and value projections, one for gate and up. The norm before each is
multiplied into it. The rows of query and key are reordered, so that the two numbers that a rotary embedding rotates
together are adjacent. The other matrices (embedding, head, output and down projections) are shared with the model. The
model itself is never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agentgym.errors import ConfigError
from agentgym.trainers.models.merged import merged_bias, merged_weight
from agentgym.trainers.models.processor import multiplies_bfloat16
from agentgym.trainers.models.products import has_faster_products, packed
from agentgym.trainers.types import CausalLM, PlainCausalLM, unwrapped

SUPPORTED_MODEL_TYPES = ("llama", "qwen2", "qwen3")
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes that the forward pass needs."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    norm_eps: float


LARGE = 1 << 20
"""Size from which a fused matrix is kept in its packed form alone."""
FUSED = ("qkv", "gate_up")
WIDE = 512
"""Hidden size from which on a CPU multiplies fused matrices faster, or as fast, if they lie as output by input."""


class PackedMatrices(NamedTuple):
    """The matrices of a layer, output by input, as oneDNN reads them; None where that is not faster."""

    qkv: Tensor | None = None
    out: Tensor | None = None
    gate_up: Tensor | None = None
    down: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """The weights of one decoder layer; biases are None if the model has none.

    Fused matrices are input by output, and lie so in memory for a hidden size below :data:`WIDE`, with which CPUs
    multiply small batches 10 to 30 % faster. Shared matrices are output by input, as in ``nn.Linear``. Packed
    matrices, if there are any, replace fused ones of :data:`LARGE` size, and in bfloat16 all matrices.
    """

    qkv: Tensor
    """``[hidden, (num_heads + 2 * num_kv_heads) * head_dim]``."""
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    """Shape ``[num_heads + num_kv_heads, head_dim]``, for Qwen3."""
    out: Tensor
    out_bias: Tensor | None
    gate_up: Tensor
    """``[hidden, 2 * intermediate]``."""
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    packed: PackedMatrices = PackedMatrices()


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """All weights of a model at one policy version."""

    shape: Shape
    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor
    rotation: Tensor
    """Complex64 ``[max_context_tokens, head_dim / 2]``: the rotation of each pair at each position."""
    shared: tuple[Tensor, ...]
    """The tensors that share memory with the model."""
    shared_edits: int
    """Result of :func:`count_edits` for ``shared`` when the weights were read."""
    packed_head: Tensor | None = None
    """The head as oneDNN reads it, like the layers' ``packed``."""


def count_edits(tensors: tuple[Tensor, ...]) -> int:
    """Return a number that grows with every in-place change that autograd's version counter records."""
    return sum(tensor._version for tensor in tensors if not tensor.is_inference())


Present = Callable[..., AbstractContextManager[None]]
"""Type of a function that returns a context in which some modules have their weights."""


def present_already(*modules: Any) -> AbstractContextManager[None]:
    """Return a context in which modules have their weights, for a model that always has them."""
    return nullcontext()


def read_weights(
    model: CausalLM,
    max_context_tokens: int,
    dtype: torch.dtype | None = None,
    present: Present = present_already,
    *,
    packs: bool = False,
) -> Weights:
    """Read the current parameters of ``model``, with merged LoRA adapters.

    Args:
        model: a Llama, Qwen2 or Qwen3 causal language model of transformers, plain or wrapped by peft.
        max_context_tokens: positions to prepare the rotary embedding for.
        dtype: dtype of the matrices; None for the model's own. With another dtype nothing is shared with the model.
        present: returns a context in which some of the model's modules have their weights.
        packs: keep matrices as oneDNN reads them, too, if it is faster on this machine.

    Raises:
        ConfigError: the architecture, an attention window, the rotary embedding or an adapter is not supported.
    """
    causal_lm = unwrapped(model)
    shape = _read_shape(causal_lm, max_context_tokens)
    decoder = causal_lm.model

    def cast(tensor: Tensor) -> Tensor:
        return tensor if dtype is None else tensor.to(dtype)

    with torch.no_grad():
        rotation = _read_rotation(decoder.rotary_emb, shape, max_context_tokens)
        layers = []
        for layer in decoder.layers:
            with present(layer):
                read = _map_layer(_read_layer(layer, shape), cast)
                layers.append(_with_packed(read) if packs and _can_pack(read.out) else read)
        with present(decoder.embed_tokens, causal_lm.lm_head, decoder.norm):
            first, last = merged_weight(decoder.embed_tokens), merged_weight(causal_lm.lm_head)
            embedding = cast(first)
            weights = Weights(
                shape=shape,
                embedding=embedding,
                layers=tuple(layers),
                norm=cast(merged_weight(decoder.norm)),
                head=embedding if first.data_ptr() == last.data_ptr() else cast(last),
                rotation=rotation,
                shared=(),
                shared_edits=0,
            )
        if packs and _can_pack(weights.head):
            weights = replace(weights, packed_head=packed(weights.head))
    return _with_shared(weights, causal_lm)


def can_read(model: CausalLM, max_context_tokens: int) -> bool:
    """Return True if :func:`read_weights` knows the model's architecture, attention and rotary embedding."""
    causal_lm = unwrapped(model)
    try:
        _read_rotation(causal_lm.model.rotary_emb, _read_shape(causal_lm, max_context_tokens), max_context_tokens)
    except ConfigError:
        return False
    return True


def refresh(weights: Weights, model: CausalLM, present: Present = present_already) -> tuple[Weights, bool]:
    """Update weights in place to the model's current parameters, one layer at a time.

    A failure leaves a mixture of old and new weights.

    Args:
        weights: the result of :func:`read_weights` for this model.
        present: returns a context in which some of the model's modules have their weights.

    Returns:
        the weights, and True if a tensor has a new address, because a shared parameter of the model was moved.
    """
    causal_lm = unwrapped(model)
    decoder, shared = causal_lm.model, {tensor.data_ptr() for tensor in weights.shared}
    moved = False

    def renewed(old: Tensor, new: Tensor) -> Tensor:
        nonlocal moved
        if old.is_mkldnn:
            return new.to(old.dtype)  # packed below
        if old.data_ptr() == new.data_ptr():
            return old
        if old.data_ptr() in shared:
            moved = True
            return new
        old.copy_(new)
        return old

    with torch.no_grad():
        layers = []
        for held, layer in zip(weights.layers, decoder.layers, strict=True):
            with present(layer):
                new = _read_layer(layer, weights.shape)
                changed: dict[str, Any] = {
                    name: renewed(getattr(held, name), tensor) for name, tensor in _tensors(new).items()
                }
                layers.append(_repacked(replace(held, **changed)))
                del new  # before the next layer is put together
        with present(decoder.embed_tokens, causal_lm.lm_head, decoder.norm):
            embedding = renewed(weights.embedding, merged_weight(decoder.embed_tokens))
            is_tied = weights.head is weights.embedding
            head = embedding if is_tied else renewed(weights.head, merged_weight(causal_lm.lm_head))
            norm = renewed(weights.norm, merged_weight(decoder.norm))
            if weights.packed_head is not None:
                weights.packed_head.copy_(packed(head))
    made = replace(weights, layers=tuple(layers), embedding=embedding, head=head, norm=norm)
    return _with_shared(made, causal_lm), moved


def _with_shared(weights: Weights, causal_lm: PlainCausalLM) -> Weights:
    """Record the tensors that share memory with the model, and their version counters."""
    parameters = {parameter.data_ptr() for parameter in causal_lm.parameters()}
    matrices = (matrix for layer in weights.layers for matrix in (layer.out, layer.down))
    candidates = (weights.embedding, weights.head, weights.norm, *matrices)
    shared = tuple(tensor for tensor in candidates if not tensor.is_mkldnn and tensor.data_ptr() in parameters)
    return replace(weights, shared=shared, shared_edits=count_edits(shared))


def _map_layer(layer: LayerWeights, change: Callable[[Tensor], Tensor]) -> LayerWeights:
    changed: dict[str, Any] = {name: change(tensor) for name, tensor in _tensors(layer).items()}
    return replace(layer, **changed)


def _tensors(layer: LayerWeights) -> dict[str, Tensor]:
    """Return the tensors of a layer by name, without packed ones."""
    held = {field.name: getattr(layer, field.name) for field in fields(layer)}
    return {name: tensor for name, tensor in held.items() if isinstance(tensor, Tensor)}


def _can_pack(matrix: Tensor) -> bool:
    if matrix.device.type != "cpu":
        return False
    if matrix.dtype is torch.bfloat16:
        return multiplies_bfloat16() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return matrix.dtype is torch.float32 and has_faster_products()


def _with_packed(layer: LayerWeights) -> LayerWeights:
    """Add the packed matrices, and drop those that they replace."""
    made = PackedMatrices(*(packed(matrix) for matrix in _unpacked(layer)))
    return replace(layer, packed=made, **_kept_packed_only(made))


def _repacked(layer: LayerWeights) -> LayerWeights:
    """Update the packed matrices, if there are any, in place to a layer's other ones."""
    for held, matrix in zip(layer.packed, _unpacked(layer), strict=True):
        if held is not None:
            held.copy_(packed(matrix))
    return replace(layer, **_kept_packed_only(layer.packed))


def _kept_packed_only(matrices: PackedMatrices) -> dict[str, Any]:
    """Return the matrices that are kept only in packed form, because no product reads the plain ones."""
    made = {name: matrix for name, matrix in matrices._asdict().items() if matrix is not None}
    return {
        name: matrix
        for name, matrix in made.items()
        if matrix.dtype is torch.bfloat16 or (name in FUSED and matrix.numel() >= LARGE)
    }


def _unpacked(layer: LayerWeights) -> tuple[Tensor, ...]:
    """Return the four matrices, output by input."""
    return layer.qkv.t(), layer.out, layer.gate_up.t(), layer.down


def _read_shape(causal_lm: PlainCausalLM, max_context_tokens: int) -> Shape:
    config = causal_lm.config
    if config.model_type not in SUPPORTED_MODEL_TYPES:
        known = ", ".join(SUPPORTED_MODEL_TYPES)
        raise ConfigError(f"the torch engine does not know the architecture {config.model_type!r}; it knows: {known}")
    if config.hidden_act != "silu":
        raise ConfigError(f"the torch engine knows the activation 'silu' only, the model has {config.hidden_act!r}")
    window = getattr(config, "sliding_window", None)
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()) and (window or 0) < max_context_tokens:
        raise ConfigError(
            f"the torch engine supports full attention only; the model has layers that see the last {window} tokens, "
            f"fewer than max_context_tokens={max_context_tokens}"
        )
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Shape(
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        hidden_size=config.hidden_size,
        vocab_size=causal_lm.lm_head.out_features,
        norm_eps=config.rms_norm_eps,
    )


def check_rotation(rotary: Any, max_context_tokens: int) -> None:
    """Check that the frequencies of the rotary embedding are constant within the context, because keys are cached.

    Raises:
        ConfigError: they change beyond a number of tokens, which the message names.
    """
    if rotary.rope_type not in _LENGTH_DEPENDENT_ROPE:
        return
    parameters = rotary.config.rope_parameters
    limit = parameters.get("original_max_position_embeddings") or rotary.config.max_position_embeddings
    if max_context_tokens > limit:
        raise ConfigError(
            f"rope type {rotary.rope_type!r} changes its frequencies beyond {limit} tokens, which the torch engine "
            f"does not support; lower max_context_tokens from {max_context_tokens} to that"
        )


def _read_rotation(rotary: Any, shape: Shape, max_context_tokens: int) -> Tensor:
    check_rotation(rotary, max_context_tokens)
    inv_freq = rotary.original_inv_freq if rotary.rope_type in _LENGTH_DEPENDENT_ROPE else rotary.inv_freq
    if inv_freq.numel() * 2 != shape.head_dim:
        raise ConfigError(f"the rotary embedding turns {inv_freq.numel() * 2} of {shape.head_dim} numbers of a head")
    device = next(rotary.buffers()).device
    positions = torch.arange(max_context_tokens, dtype=torch.float32, device=device)
    angles = positions[:, None] * inv_freq.to(device=device, dtype=torch.float32)
    scale = float(rotary.attention_scaling)
    return torch.complex(angles.cos() * scale, angles.sin() * scale)


def _read_layer(layer: Any, shape: Shape) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    dtype = layer.input_layernorm.weight.dtype  # of projections it may be that of packed bits
    attention_norm = merged_weight(layer.input_layernorm).float()
    mlp_norm = merged_weight(layer.post_attention_layernorm).float()
    order = _pairwise_order(shape.head_dim, attention_norm.device)

    def by_pairs(tensor: Tensor) -> Tensor:
        return tensor.view(-1, shape.head_dim, *tensor.shape[1:])[:, order].flatten(0, 1)

    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    query, key, value = (merged_weight(projection).float() for projection in projections)
    biases = [merged_bias(projection) for projection in projections]
    qkv_bias = None
    if biases[0] is not None and biases[1] is not None and biases[2] is not None:
        qkv_bias = torch.cat([by_pairs(biases[0]), by_pairs(biases[1]), biases[2]])
    qk_norm = None
    if hasattr(attention, "q_norm"):
        norms = ((attention.q_norm, shape.num_heads), (attention.k_norm, shape.num_kv_heads))
        qk_norm = torch.cat([merged_weight(norm)[order].expand(num, -1) for norm, num in norms])
    gate_up_bias = None
    gate_bias, up_bias = merged_bias(mlp.gate_proj), merged_bias(mlp.up_proj)
    if gate_bias is not None and up_bias is not None:
        gate_up_bias = torch.cat([gate_bias, up_bias])
    gate_up = torch.cat([merged_weight(mlp.gate_proj), merged_weight(mlp.up_proj)]).float()
    return LayerWeights(
        qkv=_stored(torch.cat([by_pairs(query), by_pairs(key), value]) * attention_norm, dtype),
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        out=merged_weight(attention.o_proj),
        out_bias=merged_bias(attention.o_proj),
        gate_up=_stored(gate_up * mlp_norm, dtype),
        gate_up_bias=gate_up_bias,
        down=merged_weight(mlp.down_proj),
        down_bias=merged_bias(mlp.down_proj),
    )


def _stored(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a fused matrix ``[output, input]`` as ``[input, output]``."""
    is_wide = matrix.shape[1] >= WIDE and not matrix.is_cuda and dtype is torch.float32
    return matrix.to(dtype).t() if is_wide else matrix.t().to(dtype).contiguous()


def _pairwise_order(head_dim: int, device: torch.device) -> Tensor:
    """Return the order 0, D/2, 1, D/2 + 1, ..., in which pairs of a rotary embedding are adjacent."""
    return torch.arange(head_dim, device=device).view(2, -1).t().flatten()
