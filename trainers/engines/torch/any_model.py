"""Sampling with the forward pass of transformers, for architectures that agentgym's own forward pass does not support.

There are two ways; the engine takes the first whose logits equal those of a plain forward pass:

* **in batches**: one call decodes a token of every row, with one key-value cache for all slots. It supports models that
  only have attention layers, full or with a sliding window.
* **row by row**: each slot has its own cache, as in ``generate``. It supports all others: linear attention,
  convolutions, state spaces.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache

from agentgym.errors import ConfigError, EngineError
from agentgym.trainers.engines.torch.forward import Chunk
from agentgym.trainers.engines.torch.weights import check_rotation, count_edits
from agentgym.trainers.models.check import layer_kinds, max_gap
from agentgym.trainers.models.head import frozen
from agentgym.trainers.models.kv_cache import cache_argument
from agentgym.trainers.models.vision import largest_logit, vision_of
from agentgym.trainers.types import CausalLM

_MIN_TOKENS: Final = 128
_CHECKED: Final = 9
"""Number of tokens of the sequences on which a way is checked."""
_WINDOWED: Final = "sliding_attention"
_KINDS: Final = frozenset({"full_attention", _WINDOWED})


class Way(Protocol):
    """A way to run chunks through the model and to store their state."""

    shares: bool
    """True if the state of a slot can be copied to another slot."""

    def logits(self, chunks: Sequence[Chunk], *, all_positions: bool = False) -> list[Tensor]:
        """Return logits ``[1, V]`` after each chunk, or ``[tokens, V]`` after each of its tokens."""
        ...

    def reserve(self, num_slots: int, num_tokens: int) -> None: ...
    def copy(self, source: int, target: int, num_tokens: int) -> None: ...
    def clear(self) -> None: ...


class AnyModelRunner:
    """The :class:`~agentgym.trainers.engines.torch.runner.Runner` of any model.

    Args:
        model: the model, which is never changed.
        num_slots: number of cache slots, with indices from 0.
        max_context_tokens: number of tokens of a slot.
        dtype: dtype of the computation; None for the model's own. With another one the engine has a copy.

    Raises:
        ConfigError: no way gives the logits of a plain forward pass, or the model's positions depend on the length.
    """

    compile_error = ""
    """Nothing is compiled."""

    def __init__(
        self, model: CausalLM, *, num_slots: int, max_context_tokens: int, dtype: torch.dtype | None = None
    ) -> None:
        for module in model.modules():
            if isinstance(getattr(module, "rope_type", None), str):
                check_rotation(module, max_context_tokens)
        self._source = model
        self._model: Any = model
        if dtype is not None and dtype != model.dtype:
            self._model = copy.deepcopy(model).eval().to(dtype)
        self.device = model.device
        self._read = self._edits()
        self.cache, self.kind = _first_that_works(self._model, num_slots, max_context_tokens)

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary."""
        size: int = self._model.get_output_embeddings().weight.shape[0]
        return size

    @property
    def shares(self) -> bool:
        """True if slots can be copied."""
        return self.cache.shares

    def update(self) -> None:
        """Read the model's current weights."""
        if self._model is not self._source:
            with torch.no_grad():
                for own, new in zip(self._model.parameters(), self._source.parameters(), strict=True):
                    own.copy_(new)
        self._read = self._edits()

    def check_weights(self, version: int) -> None:
        """Raise :class:`EngineError` if the weights are not those that were read as ``version``."""
        if self._edits() != self._read:
            raise EngineError(
                f"the model's weights were changed since they were read as version {version}; "
                "call update_weights right after changing them"
            )

    def logits(self, chunks: Sequence[Chunk], is_wanted: Sequence[bool]) -> tuple[list[int], Tensor]:
        """Run the chunks; return the indices of the chunks with logits, and the logits ``[len(indices), V]``."""
        with _evaluating(self._model):
            made = self.cache.logits(chunks)
        order = [at for at, wanted in enumerate(is_wanted) if wanted]
        return order, torch.cat([made[at] for at in order]) if order else made[0][:0]

    def token_logits(self, chunk: Chunk) -> Tensor:
        """Run a chunk and return the logits ``[tokens, V]`` after each of its tokens."""
        with _evaluating(self._model):
            return self.cache.logits([chunk], all_positions=True)[0]

    def _edits(self) -> int:
        # a copy stays as it is when the model is changed
        return 0 if self._model is not self._source else count_edits(tuple(self._source.parameters()))


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    if not model.training:
        yield
        return
    with frozen(model):
        yield


class Batched:
    """The way in batches: one call decodes a token of each row; longer chunks have separate calls."""

    shares = True

    def __init__(self, model: Any, num_slots: int, max_context_tokens: int) -> None:
        self._model = model
        self._windows = _windows(model.config.get_text_config())
        self._cache = _SlotCache(num_slots, max_context_tokens)
        self._rotations = _Rotations(model)

    def logits(self, chunks: Sequence[Chunk], *, all_positions: bool = False) -> list[Tensor]:
        made: dict[int, Tensor] = {}
        single = [at for at, chunk in enumerate(chunks) if len(chunk.token_ids) == 1]
        single.sort(key=lambda at: chunks[at].slot)
        longer = [[at] for at, chunk in enumerate(chunks) if len(chunk.token_ids) > 1]
        for members in [single, *longer] if single else longer:
            found = self._call([chunks[at] for at in members], all_positions)
            made |= {at: found[row] for row, at in enumerate(members)}
        return [made[at] for at in range(len(chunks))]

    def reserve(self, num_slots: int, num_tokens: int) -> None:
        self._cache.reserve(num_slots, num_tokens)

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        for stored in self._cache.stored():
            stored[target, :, :num_tokens] = stored[source, :, :num_tokens]
        self._rotations.copy(source, target, num_tokens)

    def clear(self) -> None:
        for stored in self._cache.stored():
            stored.zero_()
        self._rotations.clear()

    def _call(self, chunks: Sequence[Chunk], all_positions: bool) -> Tensor:
        device = self._model.device
        ids = torch.tensor([list(chunk.token_ids) for chunk in chunks], device=device)
        starts = torch.tensor([chunk.start for chunk in chunks], device=device)
        positions = starts[:, None] + torch.arange(ids.shape[1], device=device)
        num_attended = max(chunk.start for chunk in chunks) + ids.shape[1]
        self._cache.turn_to([chunk.slot for chunk in chunks], positions, num_attended)
        masks = {kind: self._mask(positions, num_attended, window) for kind, window in self._windows.items()}
        made: Tensor = self._model(
            input_ids=ids,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            position_ids=self._rotations.of(chunks, positions),
            use_cache=True,
            logits_to_keep=0 if all_positions else 1,
            **{cache_argument(self._model): self._cache},
        ).logits
        return made

    def _mask(self, positions: Tensor, num_attended: int, window: int | None) -> Tensor:
        """Return an additive mask ``[B, 1, T, num_attended]``: 0 where a token is attended to, else the minimum."""
        at = torch.arange(num_attended, device=positions.device)
        behind = positions[..., None] - at
        is_hidden = (behind < 0) if window is None else (behind < 0) | (behind >= window)
        mask = torch.zeros(is_hidden.shape, dtype=self._model.dtype, device=positions.device)
        return mask.masked_fill_(is_hidden, torch.finfo(mask.dtype).min)[:, None]


class _Rotations:
    """The positions by which keys and queries are rotated: those of tokens, but of images where these have others.

    Positions of a chunk follow from those of the whole row before it, so they are kept by slot.
    """

    def __init__(self, model: Any) -> None:
        vision = vision_of(model)
        self._vision = vision if vision is not None and vision.family.positions != "plain" else None
        self._of_slot: dict[int, Tensor] = {}

    def of(self, chunks: Sequence[Chunk], positions: Tensor) -> Tensor:
        """Return the positions ``[3, B, T]`` of chunks, or those of their tokens ``[B, T]`` as they are."""
        if self._vision is None:
            return positions
        made = []
        for chunk in chunks:
            before = self._of_slot.get(chunk.slot, torch.zeros(3, 0, dtype=torch.long))[:, : chunk.start]
            begin = int(before.max()) + 1 if chunk.start else 0
            own = self._vision.positions(chunk.token_ids, begin)
            self._of_slot[chunk.slot] = torch.cat([before, own], dim=1)
            made.append(own)
        return torch.stack(made, dim=1).to(positions.device)

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Give a slot the positions of another slot's first tokens."""
        if source in self._of_slot:
            self._of_slot[target] = self._of_slot[source][:, :num_tokens]

    def clear(self) -> None:
        """Forget all rows."""
        self._of_slot.clear()


def _windows(sizes: Any) -> dict[str, int | None]:
    """Return the kinds of a model's layers, and the number of tokens each attends to; None for all.

    Raises:
        ConfigError: a layer stores a state other than the keys and values of all tokens.
    """
    kinds = layer_kinds(sizes)
    window = getattr(sizes, "sliding_window", None)
    if not kinds:
        return {"full_attention": window}
    if kinds - _KINDS:
        raise ConfigError(f"layers of kind {', '.join(sorted(kinds - _KINDS))}")
    return {kind: window if kind == _WINDOWED else None for kind in sorted(kinds)}


class _SlotCache(Cache):
    """Keys and values ``[slots, kv_heads, tokens, head_dim]`` of every layer, for the rows of one call at a time."""

    def __init__(self, num_slots: int, max_tokens: int) -> None:
        super().__init__(layers=[])
        self._most = (num_slots, max_tokens)
        self._size = (1, min(_MIN_TOKENS, max_tokens))
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def turn_to(self, slots: Sequence[int], positions: Tensor, num_attended: int) -> None:
        """Set the rows of the next call: their slots, token positions ``[B, T]``, and the attended length."""
        self.reserve(max(slots) + 1, num_attended)
        is_range = list(slots) == list(range(slots[0], slots[0] + len(slots)))
        index = torch.tensor(slots, device=positions.device)
        self._rows: slice | Tensor = slice(slots[0], slots[0] + len(slots)) if is_range else index
        self._slots, self._positions, self._num_attended = index[:, None], positions, num_attended

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Store new keys and values, and return all that the rows attend to; a mask hides those beyond a row's end."""
        found = []
        for stored, new in ((self._keys, key_states), (self._values, value_states)):
            if layer_idx not in stored:
                stored[layer_idx] = new.new_zeros(self._size[0], new.shape[1], self._size[1], new.shape[3])
            stored[layer_idx][self._slots, :, self._positions] = new.transpose(1, 2)
            found.append(stored[layer_idx][self._rows, :, : self._num_attended])
        return found[0], found[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: positions are always given."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return the length and the offset of masks; they are always given explicitly."""
        return self._num_attended, 0

    def reserve(self, num_slots: int, num_tokens: int) -> None:
        """Grow the cache to this number of slots and tokens, and keep its contents."""
        slots, tokens = self._size
        if num_slots <= slots and num_tokens <= tokens:
            return
        grown = (
            slots if num_slots <= slots else min(max(2 * slots, num_slots), self._most[0]),
            tokens if num_tokens <= tokens else min(max(2 * tokens, num_tokens), self._most[1]),
        )
        for of_layer in (self._keys, self._values):
            for layer, old in of_layer.items():
                new = old.new_zeros(grown[0], old.shape[1], grown[1], old.shape[3])
                new[:slots, :, :tokens] = old
                of_layer[layer] = new
        self._size = grown

    def stored(self) -> Iterator[Tensor]:
        """Yield the keys and the values of every layer."""
        yield from (*self._keys.values(), *self._values.values())


class RowByRow:
    """The way row by row: each row has a cache, as in the model's own ``generate``.

    Such a cache can only grow. A slot that continues from fewer tokens than it has is computed again from its
    beginning.
    """

    shares = False

    def __init__(self, model: Any) -> None:
        self._model, self._rotations = model, _Rotations(model)
        self._held: dict[int, tuple[Any, list[int]]] = {}

    def logits(self, chunks: Sequence[Chunk], *, all_positions: bool = False) -> list[Tensor]:
        return [self._call(chunk, all_positions) for chunk in chunks]

    def _call(self, chunk: Chunk, all_positions: bool) -> Tensor:
        cache, tokens = self._held.get(chunk.slot, (None, []))
        new = list(chunk.token_ids)
        if cache is None or len(tokens) != chunk.start:
            assert len(tokens) >= chunk.start, "a slot goes on from tokens that it has read"
            cache, new = DynamicCache(config=self._model.config), tokens[: chunk.start] + new
        ids = torch.tensor([new], device=self._model.device)
        keep = len(chunk.token_ids) if all_positions else 1
        start = chunk.start + len(chunk.token_ids) - len(new)
        positions = torch.arange(start, start + len(new), device=ids.device)[None]
        rotated = self._rotations.of([Chunk(chunk.slot, start, new)], positions)
        given = {cache_argument(self._model): cache} | ({} if rotated is positions else {"position_ids": rotated})
        made = self._model(input_ids=ids, use_cache=True, logits_to_keep=keep, **given)
        self._held[chunk.slot] = cache, tokens[: chunk.start] + list(chunk.token_ids)
        logits: Tensor = made.logits[0]
        return logits

    def reserve(self, num_slots: int, num_tokens: int) -> None:
        """Do nothing: caches grow by themselves."""

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Give a slot the tokens of another slot; it computes their state itself."""
        self._held[target] = None, self._held[source][1][:num_tokens]

    def clear(self) -> None:
        self._held.clear()


Kind = Literal["batched", "row by row"]


def _first_that_works(model: Any, num_slots: int, max_context_tokens: int) -> tuple[Way, Kind]:
    """Return the first way whose logits equal those of a plain forward pass.

    Raises:
        ConfigError: no way works; the message has the reason of each. Or layers attend to chosen tokens only, which a
            short check cannot see.
    """
    chosen = getattr(model.config.get_text_config(), "index_topk", None)
    if chosen and chosen < max_context_tokens:
        raise ConfigError(
            f"the embedded engine cannot sample from {model.config.model_type!r} beyond {chosen} tokens, to which its "
            f"layers attend (index_topk): set model.max_context_tokens={chosen}, or engine.kind=vllm"
        )
    reasons = []
    for kind in ("batched", "row by row"):
        try:
            with _evaluating(model), torch.inference_mode():
                way = _made(kind, model, num_slots, max_context_tokens)
                _check(way, model, num_slots)
                _check_window(way, model, max_context_tokens)
                way.clear()
        except Exception as error:  # of code that agentgym has not seen
            reasons.append(f"{kind}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}")
        else:
            return way, kind
    raise ConfigError(
        f"the embedded engine cannot sample from {model.config.model_type!r} ({'; '.join(reasons)}); "
        "vLLM servers may: engine.kind=vllm"
    )


def _made(kind: Kind, model: Any, num_slots: int, max_context_tokens: int) -> Way:
    return Batched(model, num_slots, max_context_tokens) if kind == "batched" else RowByRow(model)


def _check(way: Way, model: Any, num_slots: int) -> None:
    """Read two sequences as a conversation is read, and compare the logits with a plain forward.

    They are prefilled with different lengths and decoded together. Then each reads several tokens more, as those of an
    environment's answer: Mamba's layers forget there what they have read.
    """
    vocab_size = model.get_output_embeddings().weight.shape[0]
    sequences = [[(7 * at + 3 + 11 * row) % vocab_size for at in range(_CHECKED + row)] for row in range(2)]
    slots = [0, min(2, num_slots - 1)] if num_slots > 1 else [0]
    for row, slot in enumerate(slots):
        way.logits([Chunk(slot, 0, sequences[row][: 3 + row])])
    at = 3
    for lengths in ((1, 1, 1), (3,)):
        for length in lengths:
            made = way.logits(
                [Chunk(slot, at + row, sequences[row][at + row : at + row + length]) for row, slot in enumerate(slots)]
            )
            at += length
        for row in range(len(slots)):
            _compare(made[row][0], model, sequences[row][: at + row])


def _check_window(way: Way, model: Any, max_context_tokens: int) -> None:
    """Read a few tokens beyond the window of a configuration, if contexts are that long.

    Moshi's cache forgets what lies behind the window, and its plain forward attends to it.
    """
    sizes = model.config.get_text_config()
    window = getattr(sizes, "sliding_window", None) or getattr(sizes, "attention_chunk_size", None)
    if not isinstance(window, int) or window >= max_context_tokens:
        return
    length = min(window + 4, max_context_tokens)
    vocab_size = model.get_output_embeddings().weight.shape[0]
    ids = [(7 * at + 3) % vocab_size for at in range(length)]
    way.logits([Chunk(0, 0, ids[:window])])
    for at in range(window, length):
        made = way.logits([Chunk(0, at, ids[at : at + 1])])
    _compare(made[0][0], model, ids)


def _compare(made: Tensor, model: Any, ids: Sequence[int]) -> None:
    """Raise an error if logits ``[V]`` are not those of a plain forward after the tokens."""
    expected = model(input_ids=torch.tensor([list(ids)], device=model.device), use_cache=False).logits[0, -1].float()
    tolerance = max_gap(model) * largest_logit(expected) + 1e-5
    gap = float((made.float() - expected).abs().max())
    if not gap <= tolerance:
        raise EngineError(f"logits differ from the plain forward's by {gap:.2g} after {len(ids)} tokens")
