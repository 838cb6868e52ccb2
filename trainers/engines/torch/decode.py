"""One token for every running row in a step of fixed shape, which a GPU replays as a CUDA graph.

A decoded token costs a GPU little and its launch much: some ten kernels a layer, each started from Python. A graph is
recorded once per shape and started as a whole, but reads and writes the same memory every time. So a step's shapes are
rounded up to a few sizes, its inputs are copied into tensors that stay, and rows that are not decoded are computed in
vain: they write to a slot nobody reads.

On a CPU the same steps run without a graph, which is how they are tested.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from agentgym.trainers.engines.torch.forward import AttentionBlock, Batch, Chunk, KVCache, forward
from agentgym.trainers.engines.torch.weights import Weights

_MIN_ATTENDED = 128
_NUM_WARM_UPS = 2
"""Runs before a recording: kernels choose their algorithm and libraries their workspace on the first."""


def size_class(size: int, smallest: int, largest: int) -> int:
    """The least power of two that is at least ``size`` and ``smallest``, or ``largest`` where that is less.

    Example:
        >>> [size_class(size, 4, 24) for size in (1, 4, 5, 17)]
        [4, 4, 8, 24]
    """
    return min(max(smallest, 1 << (size - 1).bit_length()), largest)


class FixedDecoder:
    """Logits of the next token of rows that lie in consecutive cache slots.

    Args:
        cache: with room for all slots, which it keeps from now on: a recorded graph knows its addresses.
        first_slot: of the rows.
        num_slots: how many slots rows may have.
        spare_slot: outside of those; what rows in vain write goes there.
        use_graphs: record and replay; needs CUDA.
    """

    def __init__(self, cache: KVCache, *, first_slot: int, num_slots: int, spare_slot: int, use_graphs: bool) -> None:
        self._cache, self._first_slot, self._num_slots = cache, first_slot, num_slots
        self._spare_slot, self._use_graphs = spare_slot, use_graphs
        self._steps: dict[tuple[int, int], _Step] = {}

    def forget(self) -> None:
        """Record anew: the weights have moved to other addresses."""
        self._steps.clear()

    def logits(self, weights: Weights, chunks: Sequence[Chunk]) -> Tensor:
        """Store the keys and values of one token per chunk; gives logits ``[len(chunks), vocabulary]`` in their order.

        Call it in ``torch.inference_mode()``. The weights must lie where they lay at the call before, or
        :meth:`forget` have been called since.
        """
        num_rows = max(chunk.slot for chunk in chunks) - self._first_slot + 1
        num_attended = max(chunk.start for chunk in chunks) + 1
        longest = self._cache.keys.shape[3]
        shape = (size_class(num_rows, 1, self._num_slots), size_class(num_attended, _MIN_ATTENDED, longest))
        step = self._steps.get(shape)
        if step is None:
            slots = slice(self._first_slot, self._first_slot + shape[0])
            step = self._steps[shape] = _Step(slots, shape[1], self._cache.keys.device)
        rows = [chunk.slot - self._first_slot for chunk in chunks]
        inputs = [[0] * shape[0], [self._spare_slot] * shape[0], [0] * shape[0]]
        for row, chunk in zip(rows, chunks, strict=True):
            inputs[0][row], inputs[1][row], inputs[2][row] = chunk.token_ids[0], chunk.slot, chunk.start
        logits = step(weights, self._cache, torch.tensor(inputs), use_graph=self._use_graphs)
        return logits[torch.tensor(rows, device=logits.device)]


class _Step:
    """A decoding step of one shape, with the tensors it always reads."""

    def __init__(self, slots: slice, num_attended: int, device: torch.device) -> None:
        self._slots, self._num_attended = slots, num_attended
        self._inputs = torch.zeros(3, slots.stop - slots.start, dtype=torch.int64, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits = self._inputs.new_empty(0)

    def __call__(self, weights: Weights, cache: KVCache, inputs: Tensor, *, use_graph: bool) -> Tensor:
        self._inputs.copy_(inputs)
        if not use_graph:
            return self._run(weights, cache)
        if self._graph is None:
            self._record(weights, cache)
        assert self._graph is not None
        self._graph.replay()
        return self._logits

    def _record(self, weights: Weights, cache: KVCache) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_NUM_WARM_UPS):  # they store what the step will store again
                self._run(weights, cache)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = self._run(weights, cache)

    def _run(self, weights: Weights, cache: KVCache) -> Tensor:
        token_ids, slots, positions = self._inputs.unbind()
        is_hidden = torch.arange(self._num_attended, device=positions.device) > positions[:, None]
        mask = torch.zeros(is_hidden.shape, device=positions.device).masked_fill_(is_hidden, -torch.inf)
        attended = AttentionBlock(
            slots=self._slots,
            tokens=slice(0, len(positions)),
            num_new=1,
            num_attended=self._num_attended,
            padded_from=None,
            valid=None,
            mask=mask[:, None, None],
            is_causal=False,
        )
        batch = Batch(chunks=(), token_ids_N=token_ids, slots_N=slots, positions_N=positions, blocks=(attended,))
        return F.linear(forward(weights, cache, batch), weights.head)
