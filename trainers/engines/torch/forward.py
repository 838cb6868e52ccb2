"""One forward pass over a ragged batch, with a key-value cache.

A batch is a list of chunks, each with new tokens of one cache slot: one token in decoding, many in prefill. All tokens
are flattened to ``[N, hidden]`` for the matrix products, which need no padding then. Attention runs per *block*: chunks
of similar length in neighbouring slots, so that keys and values are a view of the cache. Gathering them would cost more
than the attention itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from agentgym.trainers.engines.torch.layers import PLAIN, LayerSteps, StoredAt, scale_to_unit
from agentgym.trainers.engines.torch.transfer import on_device
from agentgym.trainers.engines.torch.weights import Shape, Weights
from agentgym.trainers.models.precision import matched_heads

_MIN_CACHE_SLOTS = 8
_MIN_CACHE_TOKENS = 128
_MAX_BRIDGED_SLOTS_CPU = 1
"""Number of unused slots that a block may span: computing one costs about as much as a call of the attention kernel."""


class Chunk(NamedTuple):
    """New tokens of one slot, at the positions ``start``, ``start + 1``, ..."""

    slot: int
    start: int
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBlock:
    """Chunks whose attention is computed in one kernel call: ``R`` neighbouring slots with up to ``T`` new tokens."""

    slots: slice
    """The ``R`` slots, which may include a few without a chunk."""
    tokens: slice
    """The chunks' tokens in the flattened batch."""
    num_new: int
    """``T``."""
    num_attended: int
    """Number of keys that the longest chunk attends to."""
    padded_from: Tensor | None
    """Batch index of each of the ``R * T`` padded queries; None if the block has no holes."""
    valid: Tensor | None
    """Indices of the real queries among the ``R * T`` padded ones, in batch order; None if all are real."""
    mask: Tensor | None
    """Additive, ``[R, 1, 1, num_attended]`` for ``T == 1``, else ``[R, 1, T, num_attended]``; None if not needed."""
    is_causal: bool
    """True if the plain causal mask is enough, because every chunk starts at position 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A flattened ragged batch of ``N`` tokens."""

    chunks: tuple[Chunk, ...]
    """Chunks in the order of the flattened tokens."""
    token_ids_N: Tensor
    slots_N: Tensor
    positions_N: Tensor
    blocks: tuple[AttentionBlock, ...]


class KVCache:
    """Keys and values ``[layers, slots, kv_heads, tokens, head_dim]``; the cache grows by doubling.

    Entries beyond a slot's length are arbitrary but finite. They are masked, and overwritten when the slot grows.
    """

    def __init__(self, shape: Shape, *, max_slots: int, max_tokens: int, device: torch.device, dtype: torch.dtype):
        self._max = (max_slots, max_tokens)
        self.keys = torch.zeros(
            shape.num_layers,
            min(_MIN_CACHE_SLOTS, max_slots),
            shape.num_kv_heads,
            min(_MIN_CACHE_TOKENS, max_tokens),
            shape.head_dim,
            device=device,
            dtype=dtype,
        )
        self.values = torch.zeros_like(self.keys)

    def reserve(self, num_slots: int, num_tokens: int) -> None:
        """Grow the cache to ``num_slots`` slots of ``num_tokens`` tokens, and keep its contents."""
        layers, slots, heads, tokens, dim = self.keys.shape
        if num_slots <= slots and num_tokens <= tokens:
            return
        new_slots = slots if num_slots <= slots else min(max(2 * slots, num_slots), self._max[0])
        new_tokens = tokens if num_tokens <= tokens else min(max(2 * tokens, num_tokens), self._max[1])
        assert new_slots >= num_slots and new_tokens >= num_tokens
        with torch.inference_mode():
            for name in ("keys", "values"):
                old: Tensor = getattr(self, name)
                grown = old.new_zeros(layers, new_slots, heads, new_tokens, dim)
                grown[:, :slots, :, :tokens] = old
                setattr(self, name, grown)

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the keys and values of the first ``num_tokens`` tokens of a slot to another slot."""
        with torch.inference_mode():
            for stored in (self.keys, self.values):
                stored[:, target, :, :num_tokens] = stored[:, source, :, :num_tokens]

    def clear(self) -> None:
        """Overwrite the cache with zeros, which is needed after NaN or infinity, because a mask does not hide them."""
        with torch.inference_mode():
            self.keys.zero_()
            self.values.zero_()


def build_batch(chunks: Iterable[Chunk], device: torch.device) -> Batch:
    """Flatten chunks and plan their attention blocks. Each slot may occur once; chunks must not be empty."""
    keyed = sorted((_length_class(chunk), chunk.slot, chunk) for chunk in chunks)
    ordered = [chunk for _, _, chunk in keyed]
    if keyed[-1][0] == 0:  # the longest class is last: all chunks are one token
        columns = [[c.token_ids[0] for c in ordered], [c.slot for c in ordered], [c.start for c in ordered]]
    else:
        columns = [
            [token for c in ordered for token in c.token_ids],
            [c.slot for c in ordered for _ in c.token_ids],
            [c.start + i for c in ordered for i in range(len(c.token_ids))],
        ]
    token_ids_N, slots_N, positions_N = on_device(columns, device).unbind()
    max_step = 1 + _MAX_BRIDGED_SLOTS_CPU if device.type == "cpu" else 1 << 30
    blocks: list[AttentionBlock] = []
    first, offset = 0, 0
    for i, (length_class, slot, _) in enumerate(keyed):
        if i + 1 == len(keyed) or keyed[i + 1][0] != length_class or keyed[i + 1][1] - slot > max_step:
            blocks.append(_build_block(ordered[first : i + 1], offset, device))
            first, offset = i + 1, blocks[-1].tokens.stop
    return Batch(
        chunks=tuple(ordered),
        token_ids_N=token_ids_N,
        slots_N=slots_N,
        positions_N=positions_N,
        blocks=tuple(blocks),
    )


def _length_class(chunk: Chunk) -> int:
    """Return 0 for one token, else a class per power of two, so that padding at most doubles the work."""
    return (len(chunk.token_ids) - 1).bit_length()


def _build_block(chunks: Sequence[Chunk], offset: int, device: torch.device) -> AttentionBlock:
    lengths = [len(chunk.token_ids) for chunk in chunks]
    num_new, num_tokens = max(lengths), sum(lengths)
    num_attended = max(chunk.start + length for chunk, length in zip(chunks, lengths, strict=True))
    first_slot, num_slots = chunks[0].slot, chunks[-1].slot - chunks[0].slot + 1
    padded_from = valid = mask = None
    if num_tokens != num_slots * num_new:
        source = [offset] * (num_slots * num_new)
        real: list[int] = []
        at = offset
        for chunk, length in zip(chunks, lengths, strict=True):
            to = (chunk.slot - first_slot) * num_new
            source[to : to + length] = range(at, at + length)
            real += range(to, to + length)
            at += length
        padded_from, valid = on_device(source, device), on_device(real, device)
    is_causal = num_new > 1 and num_attended == num_new and all(chunk.start == 0 for chunk in chunks)
    is_level = num_new == 1 and all(chunk.start == num_attended - 1 for chunk in chunks)
    if not is_causal and not is_level:
        starts = [0] * num_slots  # a slot without a chunk sees its first key, which keeps the softmax finite
        for chunk in chunks:
            starts[chunk.slot - first_slot] = chunk.start
        last_seen = on_device(starts, device)[:, None] + torch.arange(num_new, device=device)
        hidden = torch.arange(num_attended, device=device) > last_seen[:, None, :, None]
        mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf)
    return AttentionBlock(
        slots=slice(first_slot, first_slot + num_slots),
        tokens=slice(offset, offset + num_tokens),
        num_new=num_new,
        num_attended=num_attended,
        padded_from=padded_from,
        valid=valid,
        mask=mask,
        is_causal=is_causal,
    )


def forward(weights: Weights, cache: KVCache, batch: Batch, steps: LayerSteps = PLAIN) -> Tensor:
    """Store the batch's keys and values and return its final hidden states ``[N, hidden]``, norm applied.

    Call it in ``torch.inference_mode()``. The cache must have room (:meth:`KVCache.reserve`).
    """
    shape = weights.shape
    eps = torch.full((), shape.norm_eps, device=weights.norm.device)
    hidden = F.embedding(batch.token_ids_N, weights.embedding)
    rotation_N = steps.rotation(weights, batch.positions_N)
    for index, layer in enumerate(weights.layers):
        at = StoredAt(cache.keys[index], cache.values[index], batch.slots_N, batch.positions_N)
        query = steps.before_attention(hidden, rotation_N, at, layer, shape, eps)
        attended = [_attend(query, at.keys, at.values, block, shape) for block in batch.blocks]
        mixed = attended[0] if len(attended) == 1 else torch.cat(attended)
        hidden = steps.after_attention(hidden, mixed, layer, eps)
    return scale_to_unit(hidden, eps).mul_(weights.norm)


def _attend(query: Tensor, keys: Tensor, values: Tensor, block: AttentionBlock, shape: Shape) -> Tensor:
    """Compute the attention of one block, ``[num tokens of the block, num_heads * head_dim]``."""
    num_groups = shape.num_heads // shape.num_kv_heads
    num_slots = block.slots.stop - block.slots.start
    query = query[block.tokens] if block.padded_from is None else query.index_select(0, block.padded_from)
    key = keys[block.slots, :, : block.num_attended]
    value = values[block.slots, :, : block.num_attended]
    mask = None if block.mask is None else block.mask.to(query.dtype)
    if block.num_new == 1:
        # the query heads that share a key head become the kernel's query positions: no repeated keys
        query = query.view(num_slots, shape.num_kv_heads, num_groups, shape.head_dim)
        mask = None if mask is None else mask.expand(-1, -1, num_groups, -1)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask).reshape(num_slots, -1)
    else:
        query = query.view(num_slots, block.num_new, shape.num_heads, shape.head_dim).transpose(1, 2)
        key, value = matched_heads(query, key, value, mask)
        is_grouped = key.shape[1] != shape.num_heads
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=block.is_causal, enable_gqa=is_grouped
        )
        out = out.transpose(1, 2).reshape(num_slots * block.num_new, -1)
    return out if block.valid is None else out.index_select(0, block.valid)
