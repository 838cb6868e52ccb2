"""A decoder layer of the engine in two parts, before its attention and after it; plain, or compiled on a GPU.

A decoding step has few rows, and on a GPU each of a layer's many elementwise kernels takes some microseconds, however
small. ``torch.compile`` fuses them. Attention stays outside, since its shape changes from step to step, and its kernel
is chosen by torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from agentgym.trainers.engines.torch.weights import LayerWeights, Shape, Weights
from agentgym.trainers.models.products import MIN_PACKED_PRODUCTS, product

FEW_OF_LAYERS, FEW_OF_FUSED, FEW_OF_HEADS = 2, 8, 8
"""Most rows with which :func:`few_rows` is faster: with the matrices that end a layer's two parts, with fused ones, and
with the vocabulary's head."""
MIN_WEIGHTS = 1 << 17
"""Fewest weights of a matrix with which it is faster."""


class StoredAt(NamedTuple):
    """The cache of a layer ``[slots, kv_heads, tokens, head_dim]``, and the places of ``N`` new tokens in it."""

    keys: Tensor
    values: Tensor
    slots_N: Tensor
    positions_N: Tensor


@dataclass(frozen=True, slots=True)
class LayerSteps:
    """The two parts of a layer, and the rotation that the first one takes."""

    before_attention: Callable[[Tensor, Tensor, StoredAt, LayerWeights, Shape, Tensor], Tensor]
    after_attention: Callable[[Tensor, Tensor, LayerWeights, Tensor], Tensor]
    rotation: Callable[[Weights, Tensor], Tensor]
    min_rows: int = 1
    """Fewest rows of a step of fixed shape."""


def before_attention(
    hidden: Tensor, rotation_N: Tensor, at: StoredAt, layer: LayerWeights, shape: Shape, eps: Tensor
) -> Tensor:
    """Store the keys and values of the layer's input ``[N, hidden]``; return its queries ``[N, heads, head_dim]``.

    Args:
        rotation_N: of each token, complex ``[N, 1, head_dim / 2]`` or as real numbers with a last axis of two.
        eps: 0-dimensional; the norm's epsilon.
    """
    qkv = _multiply(scale_to_unit(hidden, eps), layer.qkv, layer.packed.qkv, layer.qkv_bias)
    num_rotated = (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    query_key = qkv[:, :num_rotated].view(len(qkv), -1, shape.head_dim)
    if layer.qk_norm is not None:
        query_key = scale_to_unit(query_key, eps).mul_(layer.qk_norm)
    pairs = query_key.float().view(len(qkv), -1, shape.head_dim // 2, 2)
    query_key = _rotated(pairs, rotation_N).flatten(2).to(qkv.dtype)
    at.keys[at.slots_N, :, at.positions_N] = query_key[:, shape.num_heads :]
    at.values[at.slots_N, :, at.positions_N] = qkv[:, num_rotated:].view(len(qkv), -1, shape.head_dim)
    return query_key[:, : shape.num_heads]


def after_attention(hidden: Tensor, mixed: Tensor, layer: LayerWeights, eps: Tensor) -> Tensor:
    """Return the layer's output ``[N, hidden]``, given its input and the attention's ``[N, heads * head_dim]``."""
    packed = layer.packed
    hidden = _add_linear(hidden, mixed, layer.out, packed.out, layer.out_bias)
    scaled = scale_to_unit(hidden, eps)
    gate, up = _multiply(scaled, layer.gate_up, packed.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
    return _add_linear(hidden, F.silu(gate).mul_(up), layer.down, packed.down, layer.down_bias)


def scale_to_unit(x: Tensor, eps: Tensor) -> Tensor:
    """Divide ``x`` by its root mean square in the last dimension; on a CPU in 2/3 of the time of ``F.rms_norm``."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return (x * torch.addcmul(eps, norm, norm, value=1 / x.shape[-1]).rsqrt_()).to(x.dtype)


def _rotated(pairs: Tensor, rotation_N: Tensor) -> Tensor:
    if rotation_N.is_complex():
        return torch.view_as_real(torch.view_as_complex(pairs) * rotation_N)
    (x, y), (cosine, sine) = pairs.unbind(-1), rotation_N.unbind(-1)
    return torch.stack((x * cosine - y * sine, x * sine + y * cosine), dim=-1)


def _multiply(x: Tensor, matrix: Tensor, packed: Tensor | None, bias: Tensor | None) -> Tensor:
    if packed is not None and (matrix is packed or is_large(x, packed)):
        return product(x, packed, bias)
    if is_few(x, matrix, FEW_OF_FUSED) and matrix.t().is_contiguous():
        multiplied = few_rows(x, matrix.t())
        return multiplied if bias is None else multiplied.add_(bias)
    return x @ matrix if bias is None else torch.addmm(bias, x, matrix)


def _add_linear(residual: Tensor, x: Tensor, matrix: Tensor, packed: Tensor | None, bias: Tensor | None) -> Tensor:
    if packed is not None and is_large(x, packed):
        return product(x, packed, bias).add_(residual)
    if is_few(x, matrix, FEW_OF_LAYERS):
        total = few_rows(x, matrix).add_(residual)
    else:
        total = torch.addmm(residual, x, matrix.t())
    return total if bias is None else total.add_(bias)


def logits_of(hidden: Tensor, weights: Weights) -> Tensor:
    """Return the logits ``[N, V]`` of states ``[N, hidden]``."""
    head = weights.head
    if weights.packed_head is not None and is_large(hidden, weights.packed_head):
        return product(hidden, weights.packed_head)
    return few_rows(hidden, head) if is_few(hidden, head, FEW_OF_HEADS) else F.linear(hidden, head)


def is_large(x: Tensor, packed: Tensor) -> bool:
    """Return True if a product is large enough for the packed matrix; in bfloat16 every product is.

    torch uses oneDNN for bfloat16 anyway, and reorders a plain matrix for each product.
    """
    return packed.dtype is torch.bfloat16 or x.numel() * packed.shape[0] >= MIN_PACKED_PRODUCTS


def is_few(x: Tensor, matrix: Tensor, most: int) -> bool:
    """Return True if :func:`few_rows` multiplies faster: at most ``most`` rows, in float32 on a CPU.

    Compiled layers are for any number of rows, so they ask for none.
    """
    if x.is_cuda or torch.compiler.is_compiling():
        return False
    return x.dtype is torch.float32 and len(x) <= most and matrix.numel() >= MIN_WEIGHTS


def few_rows(x: Tensor, matrix: Tensor) -> Tensor:
    """Return ``x @ matrix.t()`` for few rows, in an order in which a CPU's library does not copy the matrix first.

    Example:
        >>> few_rows(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]])).tolist()
        [[11.0, 17.0]]
    """
    several = torch.cat([x, x]) if len(x) == 1 else x  # a single column would be multiplied as slowly as before
    return torch.mm(matrix, several.t()).t()[: len(x)].contiguous()


def _complex_rotation(weights: Weights, positions_N: Tensor) -> Tensor:
    return weights.rotation[positions_N][:, None]


def _real_rotation(weights: Weights, positions_N: Tensor) -> Tensor:
    return torch.view_as_real(weights.rotation)[positions_N][:, None]


PLAIN = LayerSteps(before_attention, after_attention, _complex_rotation)


@functools.cache
def compiled_steps(backend: str = "inductor") -> LayerSteps:
    """Return the two parts as compiled functions for any number of rows, slots and tokens, one pair in a process.

    They are compiled at their first call with two rows or more; a single row would be compiled separately. torch's
    compiler has no complex numbers, so the rotation is real.
    """
    before, after = (torch.compile(part, backend=backend) for part in (before_attention, after_attention))

    def before_rows(
        hidden: Tensor, rotation_N: Tensor, at: StoredAt, layer: LayerWeights, shape: Shape, eps: Tensor
    ) -> Tensor:
        for tensor in (hidden, rotation_N, at.slots_N, at.positions_N):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        for cached in (at.keys, at.values):
            torch._dynamo.maybe_mark_dynamic(cached, (0, 2))
        return before(hidden, rotation_N, at, layer, shape, eps)

    def after_rows(hidden: Tensor, mixed: Tensor, layer: LayerWeights, eps: Tensor) -> Tensor:
        for tensor in (hidden, mixed):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return after(hidden, mixed, layer, eps)

    return LayerSteps(before_rows, after_rows, _real_rotation, min_rows=2)
