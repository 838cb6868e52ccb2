"""One token for every running row in a step of fixed shape, which a GPU replays as a CUDA graph.

Decoding a token needs little computation on a GPU, but about ten kernel launches per layer from Python. A CUDA graph is
recorded once per shape and launched as a whole, but always uses the same memory. Therefore the shapes of a step are
rounded up to a few sizes, and its inputs are copied into persistent tensors. Padding rows write to a spare slot that
nothing reads.

On a CPU the same steps run without a graph; the tests use that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from agentgym.trainers.engines.torch.forward import AttentionBlock, Batch, Chunk, KVCache, forward
from agentgym.trainers.engines.torch.layers import PLAIN, LayerSteps
from agentgym.trainers.engines.torch.transfer import on_device
from agentgym.trainers.engines.torch.weights import Weights

_MIN_ATTENDED = 128
_NUM_WARM_UPS = 2
"""Number of runs before a recording. In the first, kernels choose their algorithm and libraries their workspace. They
write to the spare slot."""


def size_class(size: int, smallest: int, largest: int) -> int:
    """Return the smallest power of two that is at least ``size`` and ``smallest``, but at most ``largest``.

    Example:
        >>> [size_class(size, 4, 24) for size in (1, 4, 5, 17)]
        [4, 4, 8, 24]
    """
    return min(max(smallest, 1 << (size - 1).bit_length()), largest)


class FixedDecoder:
    """Decoding steps that compute the logits of the next token of rows in consecutive cache slots.

    :meth:`prepare` records the graphs of all shapes before training runs next to the engine: during a recording no
    other thread may be within a step. The graphs share one memory pool, because one runs at a time.

    Args:
        cache: the cache with room for all slots. It must not move, because a recorded graph uses its addresses.
        first_slot: first slot of the rows.
        num_slots: number of slots of rows.
        spare_slot: a further slot, to which padding rows write; it follows those of the rows.
        use_graphs: record and replay CUDA graphs.
        steps: the parts of a layer.
    """

    def __init__(
        self,
        cache: KVCache,
        *,
        first_slot: int,
        num_slots: int,
        spare_slot: int,
        use_graphs: bool,
        steps: LayerSteps = PLAIN,
    ) -> None:
        self._cache, self._first_slot, self._layer_steps = cache, first_slot, steps
        self._max_rows = max(num_slots, steps.min_rows)
        self._spare_slot = spare_slot
        with torch.inference_mode():  # like the inputs of other steps, or the layers would be compiled once more
            self._inputs = torch.zeros(3, self._max_rows, dtype=torch.int64, device=cache.keys.device)
        self._recorder = _Recorder() if use_graphs else None
        self._steps: dict[tuple[int, int], _Step] = {}

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Numbers of rows and attended tokens of all steps, the largest first."""
        longest = self._cache.keys.shape[3]
        return [
            (rows, attended)
            for rows in _size_classes(self._layer_steps.min_rows, self._max_rows)
            for attended in _size_classes(_MIN_ATTENDED, longest)
        ]

    def prepare(self, weights: Weights) -> None:
        """Record the steps of all shapes again, because the addresses of the weights have changed."""
        if self._recorder is None:
            return
        self._steps.clear()  # frees the pool's memory, which the next graphs take
        logits = weights.head.new_empty(self._max_rows, len(weights.head))
        with torch.inference_mode():
            self._inputs.zero_()
            self._inputs[1] = self._spare_slot  # recording runs the steps
            for shape in self.shapes:  # smaller ones reuse the memory of a larger one
                step = self._step(shape)
                step.record(weights, self._cache, logits, self._recorder)

    def logits(self, weights: Weights, chunks: Sequence[Chunk]) -> Tensor:
        """Store the keys and values of one token per chunk; return logits ``[len(chunks), V]`` in their order.

        Call it in ``torch.inference_mode()``. The weights must have the same addresses as in the last :meth:`prepare`.
        """
        num_rows = max(chunk.slot for chunk in chunks) - self._first_slot + 1
        num_attended = max(chunk.start for chunk in chunks) + 1
        longest = self._cache.keys.shape[3]
        num_padded = size_class(num_rows, self._layer_steps.min_rows, self._max_rows)
        step = self._step((num_padded, size_class(num_attended, _MIN_ATTENDED, longest)))
        rows = [chunk.slot - self._first_slot for chunk in chunks]
        inputs = [[0] * step.num_rows, [self._spare_slot] * step.num_rows, [0] * step.num_rows]
        for row, chunk in zip(rows, chunks, strict=True):
            inputs[0][row], inputs[1][row], inputs[2][row] = chunk.token_ids[0], chunk.slot, chunk.start
        # before the step is launched: what follows it on a GPU then waits for nothing
        index = None if rows == list(range(len(rows))) else on_device(rows, self._inputs.device)
        logits = step(weights, self._cache, on_device(inputs, self._inputs.device))
        return logits[: len(rows)] if index is None else logits[index]

    def _step(self, shape: tuple[int, int]) -> _Step:
        if shape not in self._steps:
            slots = slice(self._first_slot, self._first_slot + shape[0])
            self._steps[shape] = _Step(slots, shape[1], self._inputs[:, : shape[0]], self._layer_steps)
        return self._steps[shape]


def _size_classes(smallest: int, largest: int) -> list[int]:
    """Return all values of :func:`size_class`, the largest first."""
    found = {size_class(1 << power, smallest, largest) for power in range(largest.bit_length() + 1)}
    return sorted(found, reverse=True)


class _Recorder:
    """The memory pool and the stream with which all graphs of a decoder are recorded."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def record(self, run: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """Run a function twice, then record it."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(_NUM_WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        # other threads may allocate meanwhile, which in the default mode would end the recording
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            run()
        return graph


class _Step:
    """A decoding step of one shape.

    Args:
        inputs: persistent input ``[3, rows]``: tokens, slots and positions.
    """

    def __init__(self, slots: slice, num_attended: int, inputs: Tensor, steps: LayerSteps) -> None:
        self._slots, self._num_attended, self._inputs, self._steps = slots, num_attended, inputs, steps
        self._recorded: tuple[torch.cuda.CUDAGraph, Tensor] | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows, including padding rows."""
        num_rows: int = self._slots.stop - self._slots.start
        return num_rows

    def record(self, weights: Weights, cache: KVCache, logits: Tensor, recorder: _Recorder) -> None:
        """Record the step as a graph, which writes its logits into the first rows of ``logits``."""
        own = logits[: self.num_rows]
        graph = recorder.record(lambda: self._run(weights, cache, own))
        self._recorded = graph, own

    def __call__(self, weights: Weights, cache: KVCache, inputs: Tensor) -> Tensor:
        self._inputs.copy_(inputs)
        if self._recorded is None:
            return self._run(weights, cache, weights.head.new_empty(self.num_rows, len(weights.head)))
        graph, logits = self._recorded
        graph.replay()
        return logits

    def _run(self, weights: Weights, cache: KVCache, logits: Tensor) -> Tensor:
        token_ids, slots, positions = self._inputs.unbind()
        is_hidden = torch.arange(self._num_attended, device=positions.device) > positions[:, None]
        mask = torch.zeros(is_hidden.shape, device=positions.device, dtype=cache.keys.dtype)
        mask.masked_fill_(is_hidden, -torch.inf)
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
        return torch.mm(forward(weights, cache, batch, self._steps), weights.head.t(), out=logits)
