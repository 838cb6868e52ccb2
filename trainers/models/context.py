"""Context parallelism: neighbouring ranks split the tokens of each training row, for rows that one rank cannot hold.

Each rank computes all layers for its part of a row. In every layer the ranks exchange keys and values (all-gather), and
each computes the attention of its own queries. That is exact for any causal mask, and keys and values are small where
heads are grouped. At the end the ranks exchange the hidden states, so losses see whole rows.

Source: "The Llama 3 Herd of Models" (https://arxiv.org/abs/2407.21783), section 3.3.2, all-gather-based context
parallelism. torch's own ``context_parallel`` has no kernels for CPUs, and takes no mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from agentgym.trainers.types import CausalLM, Trunk

_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""The first name since torch 2.13, which warns about the second."""
_NAME = "_agentgym_context"
"""The attribute of a model's configuration that its attention reads."""


@dataclass(frozen=True, slots=True)
class ContextRanks:
    """The ranks that split a row, and this rank's place among them."""

    group: dist.ProcessGroup
    place: int
    size: int

    def states(self, trunk: Trunk, input_ids: Tensor) -> Tensor:
        """Return the final hidden states ``[B * T, hidden]`` of rows ``[B, T]``; each rank computes its part.

        Rows are padded on the right to equal parts. Causal attention does not see padding there.
        """
        num_rows, length = input_ids.shape
        part = -(-length // self.size)
        padded = torch.nn.functional.pad(input_ids, (0, part * self.size - length))
        own = padded[:, self.place * part :][:, :part]
        positions = torch.arange(self.place * part, (self.place + 1) * part, device=input_ids.device)
        states: Tensor = trunk(
            input_ids=own, position_ids=positions.expand(num_rows, -1), use_cache=False
        ).last_hidden_state
        return self._gathered(states, dim=1)[:, :length].flatten(0, 1)

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the keys and values that this rank's queries attend to, and the mask ``[1, 1, t, keys]`` of them.

        Args:
            query: ``[B, heads, t, D]`` of this rank's ``t`` tokens.
            key: likewise, with as many heads as there are keys.
            value: likewise.
        """
        part = query.shape[2]
        seen = (self.place + 1) * part  # later tokens are hidden from all of this rank's
        keys, values = (self._gathered(mine, dim=2)[:, :, :seen] for mine in (key, value))
        at = torch.arange(seen, device=query.device)
        return keys, values, (at <= at[-part:, None])[None, None]

    def _gathered(self, part: Tensor, dim: int) -> Tensor:
        """Return the parts of all ranks in one tensor."""
        parts: tuple[Tensor, ...] = _Gather.apply(part, self)  # type: ignore[no-untyped-call]
        return torch.cat(parts, dim=dim)


class _Gather(torch.autograd.Function):
    """The parts of all ranks; the gradient of a part is the sum of what all ranks made of it."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, context: ContextRanks) -> tuple[Tensor, ...]:
        ctx.context = context
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(context.size)]
        dist.all_gather(parts, part.contiguous(), group=context.group)
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        own = torch.empty_like(gradients[0], memory_format=torch.contiguous_format)
        _reduce_scatter(own, torch.cat(gradients), group=ctx.context.group)
        return own, None


@contextmanager
def splitting(model: CausalLM, context: ContextRanks | None) -> Iterator[None]:
    """Split the rows that a model forwards in this context, also where layers are recomputed for the gradient."""
    sizes = model.config.get_text_config()
    before = context_of(sizes)
    setattr(sizes, _NAME, context)
    try:
        yield
    finally:
        setattr(sizes, _NAME, before)


def context_of(sizes: Any) -> ContextRanks | None:
    """Return the context that a model's configuration holds."""
    found: ContextRanks | None = getattr(sizes, _NAME, None)
    return found
