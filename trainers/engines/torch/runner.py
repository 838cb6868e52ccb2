"""The weights of one policy version, the key-value cache, and the forward pass of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from agentgym.errors import ConfigError, EngineError
from agentgym.trainers.engines.torch.any_model import AnyModelRunner
from agentgym.trainers.engines.torch.decode import FixedDecoder
from agentgym.trainers.engines.torch.forward import Chunk, KVCache, build_batch, forward
from agentgym.trainers.engines.torch.layers import PLAIN, LayerSteps, compiled_steps, logits_of
from agentgym.trainers.engines.torch.transfer import on_device
from agentgym.trainers.engines.torch.weights import (
    Present,
    Weights,
    count_edits,
    present_already,
    read_weights,
    refresh,
)
from agentgym.trainers.models.allocator import reuse_freed_memory
from agentgym.trainers.models.check import check_causal
from agentgym.trainers.types import CausalLM

Forward = Literal["auto", "own", "transformers"]


class RunnerCache(Protocol):
    """The memory of an engine's slots."""

    def reserve(self, num_slots: int, num_tokens: int) -> None: ...
    def copy(self, source: int, target: int, num_tokens: int) -> None: ...
    def clear(self) -> None: ...


class Runner(Protocol):
    """Interface of an engine's forward pass."""

    @property
    def device(self) -> torch.device: ...
    @property
    def cache(self) -> RunnerCache: ...
    @property
    def kind(self) -> str:
        """``own``, or the way in which transformers' forward is called."""
        ...

    @property
    def shares(self) -> bool:
        """True if slots can be copied."""
        ...

    @property
    def vocab_size(self) -> int: ...
    @property
    def compile_error(self) -> str: ...
    def update(self) -> None: ...
    def check_weights(self, version: int) -> None: ...
    def logits(self, chunks: Sequence[Chunk], is_wanted: Sequence[bool]) -> tuple[list[int], Tensor]: ...
    def token_logits(self, chunk: Chunk) -> Tensor: ...


class ModelRunner:
    """agentgym's own forward pass, which computes the logits of the next tokens of ragged chunks.

    Args:
        model: the model, which is never changed.
        num_slots: number of cache slots, with indices from 0.
        max_context_tokens: number of tokens of a slot.
        dtype: dtype of the computation; None for the model's own.
        fixed_decode: decode slots from 1 on in steps of fixed shape, which are CUDA graphs on a GPU; None: only on a
            GPU. The whole cache is then allocated at once, with one more slot.
        compile_layers: compile what surrounds attention; None: together with CUDA graphs. If that fails, the plain
            functions take its place, and :attr:`compile_error` says why.
        present: returns a context in which some of the model's modules have their weights, for a model that has them
            only while they are read.

    Raises:
        ConfigError: the model is not supported.
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        num_slots: int,
        max_context_tokens: int,
        dtype: torch.dtype | None,
        fixed_decode: bool | None,
        compile_layers: bool | None = None,
        present: Present = present_already,
    ) -> None:
        self._model, self._present, self._is_torn = model, present, False
        self.weights: Weights = read_weights(model, max_context_tokens, dtype, present, packs=not compile_layers)
        self.device = self.weights.norm.device
        is_gpu = self.device.type == "cuda"
        if not is_gpu:
            reuse_freed_memory()
        is_fixed = is_gpu if fixed_decode is None else fixed_decode
        self.cache = KVCache(
            self.weights.shape,
            max_slots=num_slots + is_fixed,
            max_tokens=max_context_tokens,
            device=self.device,
            dtype=self.weights.norm.dtype,
        )
        self._decoder: FixedDecoder | None = None
        self._layer_steps = PLAIN
        if is_fixed:
            self.cache.reserve(num_slots + 1, max_context_tokens)
        if compile_layers or (compile_layers is None and is_fixed and is_gpu):
            self._layer_steps = self._compiled()
        if is_fixed:
            self._decoder = FixedDecoder(
                self.cache,
                first_slot=1,
                num_slots=num_slots - 1,
                spare_slot=num_slots,
                use_graphs=is_gpu,
                steps=self._layer_steps,
            )
            self._decoder.prepare(self.weights)

    def _compiled(self) -> LayerSteps:
        """Compile the layers; return the plain ones if this machine cannot."""
        steps = compiled_steps()
        try:
            with torch.inference_mode():
                self.cache.reserve(1, 2)
                forward(self.weights, self.cache, build_batch([Chunk(0, 0, [0, 0])], self.device), steps)
        except Exception as error:  # no C compiler, no Triton, or a slip of torch's compiler
            self.compile_error = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            return PLAIN
        finally:
            self.cache.clear()
        return steps

    compile_error = ""
    """The error for which the layers could not be compiled."""
    shares = True
    """Slots can be copied."""
    kind = "own"

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary."""
        return self.weights.shape.vocab_size

    def token_logits(self, chunk: Chunk) -> Tensor:
        """Store a chunk's keys and values; return the logits ``[tokens, V]`` after each of its tokens."""
        self.cache.reserve(chunk.slot + 1, chunk.start + len(chunk.token_ids))
        hidden = forward(self.weights, self.cache, build_batch([chunk], self.device), self._layer_steps)
        return logits_of(hidden, self.weights)

    def update(self) -> None:
        """Read the model's weights again, in place; after a failure there are no weights until the next call."""
        self._is_torn = True
        self.weights, has_moved = refresh(self.weights, self._model, self._present)
        if has_moved and self._decoder is not None:
            self._decoder.prepare(self.weights)
        self._is_torn = False

    def check_weights(self, version: int) -> None:
        """Raise :class:`EngineError` if the weights are not those that were read as ``version``."""
        if self._is_torn:
            raise EngineError(f"the weights after version {version} could not be read; call update_weights again")
        if count_edits(self.weights.shared) != self.weights.shared_edits:
            raise EngineError(
                f"the model's weights were changed since they were read as version {version}; "
                "call update_weights right after changing them"
            )

    def logits(self, chunks: Sequence[Chunk], is_wanted: Sequence[bool]) -> tuple[list[int], Tensor]:
        """Store the chunks' keys and values; return the logits after the last token of chunks that need them.

        Call it in ``torch.inference_mode()``.

        Returns:
            the indices of those chunks, in the order of the computation, and their logits ``[len(indices), V]``.
        """
        self.cache.reserve(
            max(chunk.slot for chunk in chunks) + 1, max(chunk.start + len(chunk.token_ids) for chunk in chunks)
        )
        if self._decoder is None:
            return self._ragged(range(len(chunks)), chunks, is_wanted)
        single = [at for at, chunk in enumerate(chunks) if len(chunk.token_ids) == 1]
        longer = [at for at, chunk in enumerate(chunks) if len(chunk.token_ids) > 1]
        order: list[int] = []
        parts = []
        if longer:
            order, read = self._ragged(longer, chunks, is_wanted)
            parts.append(read)
        if single:
            decoded = self._decoder.logits(self.weights, [chunks[at] for at in single])
            kept = [row for row, at in enumerate(single) if is_wanted[at]]
            order += [single[row] for row in kept]
            parts.append(decoded if len(kept) == len(single) else decoded[on_device(kept, self.device, torch.int64)])
        return order, parts[0] if len(parts) == 1 else torch.cat(parts)

    def _ragged(
        self, members: Sequence[int], chunks: Sequence[Chunk], is_wanted: Sequence[bool]
    ) -> tuple[list[int], Tensor]:
        at_slot = {chunks[at].slot: at for at in members}
        batch = build_batch([chunks[at] for at in members], self.device)
        hidden = forward(self.weights, self.cache, batch, self._layer_steps)
        order, last_tokens = [], []
        offset = -1
        for chunk in batch.chunks:
            offset += len(chunk.token_ids)
            if is_wanted[at_slot[chunk.slot]]:
                order.append(at_slot[chunk.slot])
                last_tokens.append(offset)
        if len(order) < hidden.shape[0]:
            hidden = hidden[on_device(last_tokens, self.device, torch.int64)]
        return order, logits_of(hidden, self.weights)


def make_runner(
    model: CausalLM,
    forward: Forward,
    fixed_decode: bool | None,
    compile_layers: bool | None,
    present: Present | None,
    **sizes: Any,
) -> Runner:
    """Create the runner that computes the logits of a model.

    A model that has its weights only in the context of ``present`` needs agentgym's own forward pass.

    Raises:
        ConfigError: neither agentgym's forward pass nor that of transformers works, or the model is no causal language
            model.
    """
    own = partial(ModelRunner, model, fixed_decode=fixed_decode, compile_layers=compile_layers, **sizes)
    if present is not None:
        return own(present=present)
    if forward != "transformers":
        try:
            return own()
        except ConfigError as error:
            if forward == "own" or fixed_decode or compile_layers:
                raise
            own_reason = error
    elif fixed_decode or compile_layers:
        setting = "engine.decode=fixed" if fixed_decode else "engine.compile=true"
        raise ConfigError(f"{setting} needs the engine's own forward pass: leave it out, or set engine.forward=auto")
    check_causal(model)
    try:
        return AnyModelRunner(model, **sizes)
    except ConfigError as error:
        raise (error if forward == "transformers" else ConfigError(f"{own_reason}; {error}")) from None
