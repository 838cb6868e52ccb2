"""Causal attention of new tokens after cached ones, on a CPU, in blocks of queries.

torch's kernel skips keys behind their queries only where both begin at the same token. After a prefix it takes a mask,
and computes what the mask then hides: of a group's rows after their common prompt about a quarter of the work.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.masking_utils import sdpa_mask

BLOCK: Final = 128
"""Queries of a block. Blocks of 64 to 256 took the same time within 5 % (two cores of an AMD EPYC)."""
_MARK = "agentgym_is_causal"


def marked_mask(*arguments: Any, **settings: Any) -> Tensor | None:
    """Return transformers' mask for torch's attention, marked if it is causal after a prefix and nothing else.

    A model that changes the mask gets a tensor without the mark, and so the ordinary kernel.
    """
    mask: Tensor | None = sdpa_mask(*arguments, **settings)
    if mask is not None and not mask.is_cuda and not torch.compiler.is_compiling():
        num_new, num_attended = mask.shape[-2:]
        if 1 < num_new < num_attended and torch.equal(mask, _causal(num_new, num_attended).expand_as(mask)):
            setattr(mask, _MARK, True)
    return mask


def is_marked(mask: Tensor | None) -> bool:
    """Return True if :func:`attend_in_blocks` computes the attention with this mask."""
    return getattr(mask, _MARK, False)


def attend_in_blocks(query: Tensor, key: Tensor, value: Tensor, scale: float | None, dropout: float) -> Tensor:
    """Return the attention ``[B, T, heads, D]`` of the last ``T`` of ``S`` tokens, each over all up to itself.

    Args:
        query: ``[B, heads, T, D]``.
        key: ``[B, key heads, S, D]``, as is ``value``.
        scale: of the scores; None for the root of ``1 / D``.
        dropout: share of the weights that are dropped.

    Example:
        >>> key = torch.randn(1, 1, 5, 4)
        >>> whole = F.scaled_dot_product_attention(key, key, key, is_causal=True)
        >>> last = attend_in_blocks(key[:, :, 2:], key, key, None, 0.0)
        >>> torch.allclose(last.transpose(1, 2), whole[:, :, 2:], atol=1e-6)
        True
    """
    num_before = key.shape[2] - query.shape[2]
    outputs = []
    for start in range(0, query.shape[2], BLOCK):
        block = query[:, :, start : start + BLOCK]
        end = num_before + start + block.shape[2]
        outputs.append(
            F.scaled_dot_product_attention(
                block,
                key[:, :, :end],
                value[:, :, :end],
                attn_mask=_causal(block.shape[2], end),
                dropout_p=dropout,
                scale=scale,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous()


def _causal(num_new: int, num_attended: int) -> Tensor:
    """Return the mask ``[new, attended]`` of the last tokens, True where one is attended to."""
    return torch.ones(num_new, num_attended, dtype=torch.bool).tril(num_attended - num_new)
