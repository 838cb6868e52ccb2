"""The embedded engine: samples from a transformers model in this process, on its device, sharing its weights.

Requests are batched continuously. One asyncio task runs *ticks* while there is work. A tick admits waiting requests to
cache slots and runs one ragged forward pass: the next piece of every prompt in prefill, one token of every row in
decoding. It then samples a token for rows whose input is complete, and resolves finished requests. No threads are
used, so equal sequences of calls give bit-identical results.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import torch

from agentgym.engine import EngineHealth, SamplingParams
from agentgym.errors import ClosedError, EngineError, boundary
from agentgym.media import has_media
from agentgym.settings import Range, check_number
from agentgym.trainers.engines.torch.forward import Chunk
from agentgym.trainers.engines.torch.requests import EngineStats, Request, after_image, as_engine_error, checked_ids
from agentgym.trainers.engines.torch.runner import Forward, make_runner
from agentgym.trainers.engines.torch.sampling import RowSettings, draw_uniforms, sample
from agentgym.trainers.engines.torch.scoring import score_continuation
from agentgym.trainers.engines.torch.slots import Slot, SlotTable
from agentgym.trainers.engines.torch.weights import Present
from agentgym.trainers.models.vision import vision_of
from agentgym.trainers.types import CausalLM
from agentgym.types import Completion, FinishReason

_SCORE_SLOT = 0
_NUM_YIELDS_AFTER_FINISH = 4
"""Iterations of the event loop between a resolved request and the next tick. In one of them a caller that awaits
``generate`` directly can step its environment and send the next request; callers within ``gather``, ``wait_for`` and
tasks need more."""


class TorchEngine:
    """An :class:`~agentgym.engine.Engine` over a causal language model of transformers, plain or with LoRA adapters.

    It runs on the model's device. Weights that need neither fusing nor another dtype are shared with the model. After
    changing the model's parameters, call :meth:`update_weights` before the event loop runs again. If the engine detects
    changed weights, its requests fail, because it would sample from a mixture of versions.

    Example:
        >>> engine = TorchEngine(model, num_slots=8, max_context_tokens=512)  # doctest: +SKIP
        >>> await engine.generate([1, 5, 9], SamplingParams(seed=3), session_id="episode-0")  # doctest: +SKIP
    """

    def __init__(  # noqa: PLR0913  # one per option
        self,
        model: CausalLM,
        *,
        num_slots: int = 64,
        max_context_tokens: int = 1024,
        max_prefill_tokens: int = 2048,
        version: int = 0,
        dtype: torch.dtype | None = None,
        batch_invariant: bool = False,
        fixed_decode: bool | None = None,
        compile_layers: bool | None = None,
        forward: Forward = "auto",
        present: Present | None = None,
    ):
        """Read the model's weights as ``version``.

        Args:
            model: the model, which is never changed.
            num_slots: number of concurrent requests, and of sessions whose keys and values are cached.
            max_context_tokens: largest length of prompt plus completion.
            max_prefill_tokens: prompt tokens per tick, so that one long prompt does not delay the others.
            version: policy version of the current weights.
            dtype: dtype of the computation; None for the model's own.
            batch_invariant: compute every row separately, so that a completion does not depend on other requests.
            fixed_decode: decode in steps of fixed shape, which are CUDA graphs on a GPU; None: only on a GPU. The whole
                cache is then allocated at once.
            compile_layers: compile the layers around attention; None: only with CUDA graphs. A machine that cannot
                compile takes the plain ones; :attr:`compile_error` then says why.
            forward: ``own`` (Llama, Qwen2 and Qwen3), ``transformers`` (any model, slower), or ``auto``: ``own`` if
                possible.
            present: returns a context in which some of the model's modules have their weights, for a model that has
                them only while they are read. It takes the place of ``forward``, as only ``own`` reads parts.

        Raises:
            ConfigError: the model is not supported, or a size is below 1.
        """
        sizes = {
            "num_slots": num_slots, "max_context_tokens": max_context_tokens, "max_prefill_tokens": max_prefill_tokens
        }  # fmt: skip
        for name, value in sizes.items():
            check_number(name, value, Range(at_least=1))
        self.max_context_tokens, self._max_prefill_tokens = max_context_tokens, max_prefill_tokens
        self._batch_invariant, self.policy_version = batch_invariant, version
        self._runner = make_runner(
            model,
            forward,
            fixed_decode,
            compile_layers,
            present,
            num_slots=num_slots + 1,
            max_context_tokens=max_context_tokens,
            dtype=dtype,
        )
        self._sees = vision_of(model) is not None
        self._slots = SlotTable(num_slots, first_index=_SCORE_SLOT + 1)
        self._score_slot = Slot(_SCORE_SLOT)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._settings: tuple[list[Request], RowSettings] | None = None
        self._scheduler: asyncio.Task[None] | None = None
        self._is_closed = False
        self._stats = EngineStats()

    @property
    def forward_kind(self) -> str:
        """``own``, or the way in which transformers' forward is called: ``batched`` or ``row by row``."""
        return self._runner.kind

    @property
    def compile_error(self) -> str:
        """The error for which this machine could not compile the layers; empty if it could, or did not have to."""
        return self._runner.compile_error

    @property
    def stats(self) -> EngineStats:
        """Counters since the engine was created; always the same object."""
        self._stats.num_evictions = self._slots.num_evictions
        return self._stats

    def health(self) -> EngineHealth:
        """Return the numbers of running and waiting requests, and of prompt tokens found in the cache."""
        num_running, num_slots = len(self._running), self._slots.count
        return EngineHealth(
            running=num_running,
            queued=max(0, len(self._waiting) - (num_slots - num_running)),  # others only wait for the next tick
            prefix_tokens=self._stats.num_prefill_tokens + self._stats.num_reused_tokens,
            prefix_hits=self._stats.num_reused_tokens,
        )

    # --------------------------------------------------------------------------------------------- the contract

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session_id: str = ""
    ) -> Completion:
        """Sample one completion.

        With a ``session_id`` the keys and values of prompt and completion stay cached, and the next prompt of that
        session is computed only from the first different token on. Requests of one session run one after the other. A
        prompt that fills the context exactly gives an empty completion with ``FinishReason.LENGTH``.

        Raises:
            EngineError: the prompt is empty, longer than the context or has ids outside the vocabulary; the forward
                pass failed; or the engine was closed in the meantime.
            ClosedError: the engine was closed before.
        """
        self._check_open()
        token_ids = self._checked(prompt_ids, "prompt")
        max_new_tokens = min(sampling.max_new_tokens, self.max_context_tokens - len(token_ids))
        request = Request(
            token_ids=token_ids,
            num_prompt=len(token_ids),
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            session_id=session_id,
            future=asyncio.get_running_loop().create_future(),
            uniforms=draw_uniforms(sampling.seed, max_new_tokens) if sampling.temperature else [],
        )
        if max_new_tokens == 0:
            return request.completion(FinishReason.LENGTH)
        self._ensure_scheduler()
        self._waiting.append(request)
        try:
            return await request.future
        except asyncio.CancelledError:
            self._abandon(request)
            raise

    async def score(self, prompt_ids: Sequence[int], continuation_ids: Sequence[int]) -> tuple[float, ...]:
        """Return the log-probability (temperature 1) of each continuation token, given the prompt and earlier tokens.

        Raises:
            EngineError: the prompt is empty, both together exceed the context, or the forward failed.
            ClosedError: the engine was closed before.
        """
        self._check_open()
        num_prompt = len(self._checked(prompt_ids, "prompt"))
        if not continuation_ids:
            return ()
        if has_media(continuation_ids):
            raise EngineError("an image in a continuation has no log-probability; score the tokens after it alone")
        token_ids = self._checked([*prompt_ids, *continuation_ids], "prompt with continuation")
        try:
            with boundary(EngineError, "score"), torch.inference_mode():
                self._runner.check_weights(self.policy_version)
                logprobs = score_continuation(
                    self._runner, self._score_slot, token_ids, num_prompt, self._max_prefill_tokens
                )
        except EngineError:
            self._score_slot.num_cached = 0
            raise
        return tuple(logprobs)

    async def release(self, session_id: str) -> None:
        """Drop the cached state of a session that has ended; unknown ids are ignored."""
        self._slots.release(session_id)

    async def update_weights(self, version: int) -> None:
        """Read the model's current parameters as ``version``.

        Cached keys and values of older weights are dropped. Requests in flight continue with the new weights: their
        context is computed again, and each of their tokens has the version that sampled it.

        Raises:
            EngineError: the weights could not be read; requests then fail until they can be.
            ClosedError: the engine was closed before.
        """
        self._check_open()
        with boundary(EngineError, "update_weights"):
            self._runner.update()
        self.policy_version = version
        self._forget_cached()

    async def close(self) -> None:
        """Free all memory and fail the requests in flight; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._fail_all(lambda: EngineError("the engine was closed before the request was done"))
        del self._runner

    # --------------------------------------------------------------------------------------- checks and clean-up

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the engine was used after close")

    def _checked(self, token_ids: Sequence[int], what: str) -> list[int]:
        return checked_ids(token_ids, what, self.max_context_tokens, self._runner.vocab_size, sees=self._sees)

    def _forget_cached(self) -> None:
        self._slots.forget_cached()
        self._score_slot.num_cached = 0

    def _abandon(self, request: Request) -> None:
        """Remove a cancelled request and its session, because no request continues from a partial completion."""
        if request.slot is None:
            if request in self._waiting:
                self._waiting.remove(request)
            return
        if request in self._running:
            self._running.remove(request)
            self._slots.release(request.session_id)
            self._slots.finish(request.slot)
        elif not self._slots.is_session_busy(request.session_id):
            self._slots.release(request.session_id)

    def _fail_all(self, make_error: Callable[[], BaseException], *, waiting: bool = True) -> None:
        failed = [*self._running, *(self._waiting if waiting else ())]
        for request in self._running:
            assert request.slot is not None
            self._slots.finish(request.slot)
        self._running.clear()
        if waiting:
            self._waiting.clear()
        for request in failed:
            if not request.future.done() and not request.future.get_loop().is_closed():
                request.future.set_exception(make_error())

    # -------------------------------------------------------------------------------------------- the scheduler

    def _ensure_scheduler(self) -> None:
        loop = asyncio.get_running_loop()
        task = self._scheduler
        if task is not None and not task.done() and task.get_loop() is not loop:
            if not task.get_loop().is_closed():
                raise EngineError("an engine serves one event loop at a time, and another one is using it")
            self._fail_all(lambda: EngineError("the event loop of the request was closed"))
            task = None
        if task is None or task.done():
            self._scheduler = loop.create_task(self._run(), name="torch-engine")

    async def _run(self) -> None:
        """Run ticks while there is work. The task ends with the work, so none is left when the event loop ends."""
        try:
            while self._waiting or self._running:
                started = time.perf_counter()
                has_finished = self._tick()
                self._stats.busy_s += time.perf_counter() - started
                for _ in range(_NUM_YIELDS_AFTER_FINISH if has_finished else 1):
                    await asyncio.sleep(0)
        except BaseException:  # cancelled with its loop, or a slip of our own: nobody may be left waiting
            self._fail_all(lambda: EngineError("the engine's scheduler was stopped"))
            raise

    def _tick(self) -> bool:
        """Advance every running row by one token; return True if a request was resolved."""
        self._admit()
        try:
            with torch.inference_mode():
                self._runner.check_weights(self.policy_version)
                self._stats.num_ticks += 1
                if not self._batch_invariant:
                    return self._advance(*self._next_chunks())
                return any([self._advance([row], [chunk]) for row, chunk in zip(*self._next_chunks(), strict=True)])
        except Exception as error:
            # whatever failed, the cache may hold numbers that are not finite, and masks do not hide those
            self._fail_all(partial(as_engine_error, error), waiting=False)
            self._forget_cached()
            with torch.inference_mode():  # as the cache was filled
                self._runner.cache.clear()
            return True

    def _admit(self) -> None:
        """Give slots to waiting requests in order of arrival; the next request of a busy session stays in the queue."""
        blocked: list[Request] = []
        while self._waiting:
            request = self._waiting.popleft()
            if self._slots.is_session_busy(request.session_id):
                blocked.append(request)
                continue
            slot = self._slots.acquire(request.session_id)
            if slot is None:
                self._waiting.appendleft(request)
                break
            request.slot = slot
            request.queued_s = round(time.perf_counter() - request.asked_s, 6)
            self._stats.num_reused_tokens += slot.adopt(request.token_ids, request.num_prompt - 1)
            self._running.append(request)
        self._waiting.extendleft(reversed(blocked))

    def _next_chunks(self) -> tuple[list[Request], list[Chunk]]:
        """Return the next tokens of every running row; prompts share ``max_prefill_tokens``, the earliest first."""
        requests, chunks = [], []
        budget = self._max_prefill_tokens
        reading: list[Slot] = []
        for request in self._running:
            slot = request.slot
            assert slot is not None
            start, stop = slot.num_cached, len(slot.token_ids)
            if stop - start > 1 or start < request.num_prompt:
                if not self._batch_invariant and self._runner.shares:
                    start = self._borrow(slot)
                    if any(slot.gains_by(other, len(other.token_ids) - 1) for other in reading):
                        continue  # another row reads the same beginning; copy it when it is there
                    reading.append(slot)
                stop = after_image(slot.token_ids, min(stop, start + budget))
                if budget <= 0:
                    continue
                if not self._batch_invariant:
                    budget -= stop - start
                self._stats.num_prefill_tokens += stop - start
            requests.append(request)
            chunks.append(Chunk(slot.index, start, slot.token_ids[start:stop]))
        return requests, chunks

    def _borrow(self, slot: Slot) -> int:
        """Copy a common prefix from another slot's cache if that saves enough; return the number of cached tokens.

        Members of a group share their prompt, and episodes of an environment share the description of the tools.
        """
        if (donor := self._slots.donor(slot)) is not None:
            cache, num_shared = self._runner.cache, slot.num_shared(donor)
            cache.reserve(max(donor.index, slot.index) + 1, num_shared)
            cache.copy(donor.index, slot.index, num_shared)
            self._stats.num_reused_tokens += num_shared - slot.num_cached
            slot.num_cached = num_shared
        return slot.num_cached

    def _advance(self, requests: list[Request], chunks: list[Chunk]) -> bool:
        """Run the chunks, sample for every row whose input is complete, and resolve finished rows."""
        ends = [chunk.start + len(chunk.token_ids) for chunk in chunks]
        is_complete = [end == len(request.token_ids) for request, end in zip(requests, ends, strict=True)]
        order, logits = self._runner.logits(chunks, is_complete)
        for request, end in zip(requests, ends, strict=True):
            assert request.slot is not None
            request.slot.num_cached = end
        if not order:
            return False
        rows = [requests[at] for at in order]
        uniforms = [r.uniforms[len(r.logprobs)] if r.uniforms else 0.0 for r in rows]
        tokens, logprobs = sample(logits, self._settings_of(rows), uniforms)
        sampled = torch.stack([tokens.double(), logprobs.double()]).tolist()  # one transfer for both
        return self._append(rows, sampled[0], sampled[1])

    def _settings_of(self, rows: list[Request]) -> RowSettings:
        if self._settings is None or self._settings[0] != rows:
            params = [request.sampling for request in rows]
            self._settings = rows, RowSettings.build(params, self._runner.vocab_size, self._runner.device)
        return self._settings[1]

    def _append(self, rows: list[Request], tokens: list[float], logprobs: list[float]) -> bool:
        if not math.isfinite(sum(logprobs)):
            raise EngineError("the model's logits are not finite")
        self._stats.num_sampled_tokens += len(rows)
        finished = []
        for request, token, logprob in zip(rows, map(int, tokens), logprobs, strict=True):
            request.token_ids.append(token)
            request.logprobs.append(logprob)
            request.policy_versions.append(self.policy_version)
            if token in request.sampling.stop_token_ids:
                finished.append((request, FinishReason.STOP))
            elif len(request.logprobs) == request.max_new_tokens:
                finished.append((request, FinishReason.LENGTH))
        for request, reason in finished:
            assert request.slot is not None
            self._slots.finish(request.slot)
            self._running.remove(request)
            if not request.future.done():
                request.future.set_result(request.completion(reason))
        return bool(finished)
