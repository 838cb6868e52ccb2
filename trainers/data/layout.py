"""Layouts of training rows: padded, padded after a common prefix, or packed into one sequence.

Rows of a group share their prompt, and often their first turns; so do the context windows of an episode. A common
prefix need not be forwarded once per row. Hidden states and gradients are the same in every layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from agentgym.trainers.data.row import Span
from agentgym.trainers.kinds import LayoutKind
from agentgym.trainers.models.context import context_of
from agentgym.trainers.models.kv_cache import cache_argument, cache_of
from agentgym.trainers.models.precision import ATTENTION
from agentgym.trainers.types import CausalLM, Trunk

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

PAD_ID = 0
TokenIds = Sequence[int]


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """``B`` rows of ``T`` tokens after a common prefix of ``P`` tokens, which is forwarded once (P may be 0).

    Padding is on the right, where causal attention does not see it.
    """

    prefix_ids: Tensor
    """``[P]``"""
    input_ids: Tensor
    """``[B, T]``"""
    spans: tuple[tuple[int, tuple[Span, ...]], ...] = ()
    """Number of tokens and spans of each row, if one has spans; there is then no prefix."""


@dataclass(frozen=True, slots=True)
class Forest:
    """Rows packed into one sequence, in which each distinct prefix occurs once (a forest of prefix trees).

    Token i attends to token j exactly if ``j <= i < end[j]``: then j precedes i in a row.

    Example:
        >>> forest, where = grow_forest([(5, 6, 7), (5, 6, 8, 9), (4,)])
        >>> forest.input_ids.tolist(), forest.position.tolist(), forest.end.tolist(), where
        ([4, 5, 6, 7, 8, 9], [0, 0, 1, 2, 2, 3], [1, 6, 6, 4, 6, 6], [[1, 2, 3], [1, 2, 4, 5], [0]])
    """

    input_ids: Tensor
    """``[T]``"""
    position: Tensor
    """``[T]`` position of the token in its rows."""
    end: Tensor
    """``[T]`` one past the last token that attends to this one."""


Layout = PaddedRows | Forest


def lay_out(
    rows: Sequence[TokenIds], kind: LayoutKind, device: torch.device | str, spans: Sequence[tuple[Span, ...]] = ()
) -> tuple[Layout, list[list[int]]]:
    """Return the rows in a layout, and for each token of each row the index of its state in :func:`hidden_states`.

    Args:
        spans: the spans of each row, for the layout ``rows`` alone.
    """
    if kind == "packed":
        forest, where = grow_forest(rows)
        return Forest(forest.input_ids.to(device), forest.position.to(device), forest.end.to(device)), where
    num_shared = shared_prefix(rows) if kind == "prefix" else 0
    longest = max(map(len, rows)) - num_shared
    input_ids = np.full((len(rows), longest), PAD_ID)
    for index, row in enumerate(rows):
        input_ids[index, : len(row) - num_shared] = row[num_shared:]
    begins = [num_shared + index * longest for index in range(len(rows))]
    where = [
        [*range(num_shared), *range(begin, begin + len(row) - num_shared)]
        for begin, row in zip(begins, rows, strict=True)
    ]
    prefix_ids = torch.tensor(rows[0][:num_shared], dtype=torch.long)
    of_spans = tuple(zip(map(len, rows), spans, strict=True)) if any(spans) else ()
    return PaddedRows(prefix_ids.to(device), torch.from_numpy(input_ids).to(device), of_spans), where


def _mask_spans(layout: PaddedRows) -> dict[str, Tensor]:
    """Return the additive attention mask ``[B, 1, T, T]`` of rows with spans, and their position ids ``[B, T]``."""
    if not layout.spans:
        return {}
    num_rows, longest = layout.input_ids.shape
    sees = torch.ones(num_rows, longest, longest, dtype=torch.bool).tril_()
    positions = torch.arange(longest).repeat(num_rows, 1)
    for row, (length, own) in enumerate(layout.spans):
        at = length - sum(span.length for span in own)
        for span in own:
            sees[row, at : at + span.length, span.after : at] = False
            positions[row, at : at + span.length] = torch.arange(span.after, span.after + span.length)
            at += span.length
    hidden_from = torch.finfo(torch.float32).min  # not -inf: a padded token sees nothing, and would be NaN
    mask, device = torch.zeros(sees.shape).masked_fill_(~sees, hidden_from)[:, None], layout.input_ids.device
    return {"attention_mask": mask.to(device), "position_ids": positions.to(device)}


def shared_prefix(rows: Sequence[TokenIds]) -> int:
    """Return the length of the prefix that all rows share; at least one token of each row is not part of it.

    Example:
        >>> shared_prefix([(5, 6, 7), (5, 6, 8)]), shared_prefix([(5, 6), (5, 6)]), shared_prefix([(5, 6)])
        (2, 1, 0)
    """
    if len(rows) < 2:
        return 0
    return min(*(common_prefix(rows[0], row) for row in rows[1:]), min(map(len, rows)) - 1)


def common_prefix(one: TokenIds, other: TokenIds) -> int:
    """Return the length of the common prefix of two rows.

    Example:
        >>> common_prefix((5, 6, 7), (5, 6, 8, 9))
        2
    """
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def grow_forest(rows: Sequence[TokenIds]) -> tuple[Forest, list[list[int]]]:
    """Build the prefix trees of rows, depth first; return them with the indices of each row's tokens."""
    token_ids: list[int] = []
    position: list[int] = []
    end: list[int] = []
    path: list[int] = []
    where: list[list[int]] = [[] for _ in rows]
    before: TokenIds = ()
    for index in sorted(range(len(rows)), key=lambda at: tuple(rows[at])):  # rows that begin alike are neighbours
        row = rows[index]
        num_shared = common_prefix(before, row)
        _close(end, path[num_shared:], len(token_ids))
        path = [*path[:num_shared], *range(len(token_ids), len(token_ids) + len(row) - num_shared)]
        token_ids += row[num_shared:]
        position += range(num_shared, len(row))
        end += [0] * (len(row) - num_shared)
        where[index], before = path, row
    _close(end, path, len(token_ids))
    return Forest(torch.tensor(token_ids), torch.tensor(position), torch.tensor(end)), where


def hidden_states(trunk: Trunk, layout: Layout) -> Tensor:
    """Return the final hidden states ``[tokens in the layout, hidden]`` of the network below the head."""
    if isinstance(layout, Forest):
        return _forest_states(trunk, layout)
    if (context := context_of(trunk.config.get_text_config())) is not None:
        assert not layout.prefix_ids.numel(), "rows that ranks split share no prefix"
        return context.states(trunk, layout.input_ids)
    if not layout.prefix_ids.numel():
        states = trunk(input_ids=layout.input_ids, use_cache=False, **_mask_spans(layout)).last_hidden_state
        return states.flatten(0, 1)
    prefix = trunk(input_ids=layout.prefix_ids[None], use_cache=True)
    cache = cache_of(prefix)  # its keys and values carry gradients
    cache.batch_repeat_interleave(len(layout.input_ids))
    states = trunk(input_ids=layout.input_ids, use_cache=True, **{cache_argument(trunk): cache}).last_hidden_state
    return torch.cat([prefix.last_hidden_state[0], states.flatten(0, 1)])


@contextmanager
def recomputed(model: CausalLM) -> Iterator[None]:
    """Enable gradient checkpointing in this context: layers recompute their activations in the backward pass."""
    # transformers' name from 5.23 on, and the earlier one
    is_renamed = hasattr(model, "activation_checkpointing_enable")
    enable = model.activation_checkpointing_enable if is_renamed else model.gradient_checkpointing_enable
    disable = model.activation_checkpointing_disable if is_renamed else model.gradient_checkpointing_disable
    enable({"use_reentrant": False})
    layers = [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]
    kept = [(layer, name, value) for layer in layers for name, value in vars(layer).items() if _sets_mode(name, value)]
    for layer, name, _ in kept:
        setattr(layer, name, True if name == "training" else 0.0)
    try:
        yield
    finally:
        for layer, name, value in kept:
            setattr(layer, name, value)
        disable()


def _sets_mode(name: str, value: object) -> bool:
    """Return True for a layer's mode, since transformers recomputes in training mode alone, and for its own dropout.

    Modules inside of the layer stay in their mode, in which they drop out nothing.
    """
    return name == "training" or ("dropout" in name and isinstance(value, float))


def _forest_states(trunk: Trunk, forest: Forest) -> Tensor:
    mask = _block_mask(forest) if forest.input_ids.is_cuda else _dense_mask(forest, next(trunk.parameters()).dtype)
    with _attention(trunk, "flex_attention" if forest.input_ids.is_cuda else ATTENTION):
        states: Tensor = trunk(
            input_ids=forest.input_ids[None],
            position_ids=forest.position[None],
            attention_mask=mask,
            use_cache=False,
        ).last_hidden_state
    return states[0]


def _dense_mask(forest: Forest, dtype: torch.dtype) -> Tensor:
    """Return an additive mask ``[1, 1, T, T]``: 0 where a token is attended to, and the lowest number elsewhere."""
    at = torch.arange(forest.end.numel(), device=forest.end.device)
    sees = (at[None, :] <= at[:, None]) & (at[:, None] < forest.end[None, :])
    mask = torch.zeros(sees.shape, dtype=dtype, device=sees.device)
    return mask.masked_fill_(~sees, torch.finfo(dtype).min)[None, None]


def _block_mask(forest: Forest) -> BlockMask:
    """Return the mask in FlexAttention's form, which skips blocks that are masked completely."""
    from torch.nn.attention.flex_attention import create_block_mask

    end, length = forest.end, int(forest.end.numel())

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < end[key])

    return create_block_mask(sees, None, None, length, length, device=end.device)


@contextmanager
def _attention(trunk: Trunk, name: str) -> Iterator[None]:
    """Use another attention implementation in this context; transformers reads the setting in every forward pass."""
    before = trunk.config._attn_implementation
    trunk.config._attn_implementation = name
    try:
        yield
    finally:
        trunk.config._attn_implementation = before


def _close(end: list[int], path: Sequence[int], at: int) -> None:
    for index in path:
        end[index] = at
