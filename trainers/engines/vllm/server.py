"""The engine over vLLM servers, which run in their own environment on this machine or others and are called over HTTP.

Requests and answers contain token ids, with log-probabilities of the sampling distribution. Every token has the version
of the weights that sampled it: during an update a server keeps its requests and reports their progress, or finishes
them before. Requests only go to servers that have proved to have the current weights. Every call has a timeout. A
server's failure is at most an :class:`~agentgym.errors.EngineError`, which ends an episode without a reward.

Of the ranks that train one model, one gives a server its weights: the first one all of them, or each rank its share.
Every rank sends requests to all of them. At each update the ranks do this together:

1. :meth:`ServersEngine.hold`: no rank sends requests to the servers of others any more. Those in flight end, or stay
   (``engine.in_flight``).
2. The first rank publishes the weights, and :meth:`ServersEngine.give` sends them: each rank updates its servers, which
   tell it how many tokens each request had at that time, whoever sent it.
3. :meth:`ServersEngine.adopt`: all ranks learn that, and send requests to the servers that have proved to have the
   weights.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from agentgym.engine import EngineHealth, SamplingParams
from agentgym.errors import ClosedError, EngineError, boundary
from agentgym.media import has_media
from agentgym.trainers.distributed.devices import free_unused
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.vllm.client import ModelFacts
from agentgym.trainers.engines.vllm.guest import GuestPool
from agentgym.trainers.engines.vllm.images import WITH_IMAGES, PromptImages, as_completion, with_images
from agentgym.trainers.engines.vllm.in_flight import Flight, Server
from agentgym.trainers.engines.vllm.loading import LoadingPool
from agentgym.trainers.engines.vllm.pool import PoolStats
from agentgym.trainers.engines.vllm.proof import DTYPES
from agentgym.trainers.engines.vllm.weights import Handover, ProvenServer, Published, Readiness, Source, WeightSync
from agentgym.trainers.engines.vllm.wire import (
    MIN_TEMPERATURE,
    completion_body,
    read_completion,
    read_scores,
    score_body,
)
from agentgym.types import Completion, FinishReason, Json


class ServersEngine(ABC):
    """Sampling from one or many servers that ``agentgym serve-model`` started, whoever gives them their weights.

    Unlike the embedded engine it has no weights at first, and no request is sent before the servers have some.

    Args:
        pool: the servers.
        facts: facts about the trainer's model.
        max_context_tokens: largest length of prompt plus completion.
        sleeps: True if servers free their memory while the trainer trains (``engine.sleep``).
        vision: vision of a model that sees, whose prompts may hold images.
    """

    def __init__(
        self,
        pool: GuestPool,
        facts: ModelFacts,
        max_context_tokens: int,
        *,
        sleeps: bool,
        vision: PromptImages | None = None,
    ) -> None:
        self._pool, self._facts, self._sleeps, self._vision = pool, facts, sleeps, vision
        self._banned = () if vision is None else vision.suppressed
        self._pad_id = -1 if vision is None else vision.pad_id
        self.max_context_tokens = max_context_tokens
        self.policy_version = 0
        self._is_closed = False

    @abstractmethod
    async def update_weights(self, version: int) -> None:
        """See :meth:`agentgym.engine.Engine.update_weights`."""

    @abstractmethod
    async def give(self, published: Published, *, is_patient: bool) -> Mapping[str, ProvenServer]:
        """Send weights to the servers of this process, and return those that have them by address.

        Args:
            published: the weights, published by this or another process.
            is_patient: wait until a server has them, also if none is ready now.
        """

    async def hold(self) -> Readiness:
        """Send no requests to servers of others until :meth:`adopt`; return when they may get new weights.

        Raises:
            ClosedError: the engine was closed before.
        """
        self._check_open()
        if self._sleeps:
            free_unused()
        with boundary(EngineError, "hold"):
            await self._pool.hold()
        return self._pool.readiness()

    def adopt(self, handover: Handover) -> None:
        """Send requests to the servers of others that have new weights.

        Raises:
            EngineError: no server has them.
            ClosedError: the engine was closed before.
        """
        self._check_open()
        if not handover.servers:
            version = handover.published.version
            raise EngineError(f"no vLLM server took the weights of version {version}: {self._pool.reasons()}")
        self.policy_version = handover.published.version
        self.server_stats.num_updated = len(handover.servers)
        self._pool.adopt(handover)

    @property
    def server_stats(self) -> PoolStats:
        """Counters since the engine was created; always the same object."""
        return self._pool.stats

    def health(self) -> EngineHealth:
        """Return the number of requests in flight, the ready servers, and the reasons why others are out."""
        return self._pool.health()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session_id: str = ""
    ) -> Completion:
        """Sample one completion; requests of a session go to the same server as long as it serves.

        A prompt that fills the context exactly gives an empty completion with ``FinishReason.LENGTH``.

        Raises:
            EngineError: the prompt is empty, longer than the context or has ids outside the vocabulary; or no server
                returned a valid completion.
            ClosedError: the engine was closed before.
        """
        self._check_open()
        token_ids = self._checked(prompt_ids, "prompt")
        if 0 < sampling.temperature < MIN_TEMPERATURE:
            raise EngineError(f"vLLM samples at temperature 0 or from {MIN_TEMPERATURE}, not at {sampling.temperature}")
        images = () if self._vision is None else tuple(self._vision.images_in(token_ids))
        expected_ids = [self._pad_id if token < 0 else token for token in token_ids]
        max_new_tokens = min(sampling.max_new_tokens, self.max_context_tokens - len(token_ids))
        if max_new_tokens == 0:
            return Completion(token_ids=(), logprobs=(), policy_versions=(), finish_reason=FinishReason.LENGTH)

        def post(server: Server, published: Published, flight: Flight) -> Awaitable[Json]:
            salt = published.cache_salt
            body = completion_body(
                server.model_name, token_ids, sampling, max_new_tokens, salt, flight.name, self._banned
            )
            if not images:
                return server.client.post("/v1/completions", body, None)
            return server.client.post(WITH_IMAGES, with_images(body, token_ids, images, self._pad_id), None)

        def read(answer: Json, published: Published, flight: Flight) -> Completion:
            return read_completion(
                as_completion(answer) if images else answer,
                prompt_ids=expected_ids,
                sampling=sampling,
                max_new_tokens=max_new_tokens,
                vocab_size=self._facts.vocab_size,
                version=published.version,
                changes=flight.changes,
            )

        with boundary(EngineError, "vLLM"):
            return await self._pool.ask(session_id, "completion", post, read, can_be_kept=True)

    async def score(self, prompt_ids: Sequence[int], continuation_ids: Sequence[int]) -> tuple[float, ...]:
        """Return the log-probability (temperature 1) of each continuation token, given the prompt and earlier tokens.

        A server samples one token more than it scores, so prompt and continuation must leave room for one.

        Raises:
            EngineError: the prompt is empty, both together fill the context, or no server returned valid scores.
            ClosedError: the engine was closed before.
        """
        self._check_open()
        if has_media([*prompt_ids, *continuation_ids]):
            raise EngineError("vLLM servers do not score tokens after images; set engine.kind=torch")
        num_prompt = len(self._checked(prompt_ids, "prompt"))
        if not continuation_ids:
            return ()
        token_ids = self._checked([*prompt_ids, *continuation_ids], "prompt with continuation", room=1)

        def post(server: Server, published: Published, _: Flight) -> Awaitable[Json]:
            return server.client.post(
                "/v1/completions", score_body(server.model_name, token_ids, published.cache_salt), None
            )

        def read(answer: Json, *_: object) -> tuple[float, ...]:
            return read_scores(answer, token_ids, num_prompt)

        with boundary(EngineError, "vLLM"):
            return await self._pool.ask("", "score", post, read)

    async def release(self, session_id: str) -> None:
        """Drop a session's assignment to a server; unknown ids are ignored."""
        self._pool.forget(session_id)

    async def close(self) -> None:
        """Disconnect from the servers, which keep running; a second call does nothing."""
        self._is_closed = True
        await self._pool.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the engine was used after close")

    def _checked(self, token_ids: Sequence[int], what: str, room: int = 0) -> list[int]:
        ids = [int(token) for token in token_ids]
        if not ids:
            raise EngineError(f"the {what} is empty; the model needs at least one token to go on from")
        if len(ids) + room > self.max_context_tokens:
            raise EngineError(
                f"the {what} has {len(ids)} tokens{f' and needs {room} more' if room else ''}, "
                f"the context holds {self.max_context_tokens}"
            )
        if (min(ids) < 0 and self._vision is None) or max(ids) >= self._facts.vocab_size:
            raise EngineError(f"the {what} has a token id outside the vocabulary of 0 to {self._facts.vocab_size - 1}")
        return ids


class VllmEngine(ServersEngine):
    """An :class:`~agentgym.engine.Engine` over vLLM servers, which gives them the trainer's weights.

    Several processes may share the servers and give each its weights (:meth:`share`).

    Example:
        >>> config = EngineConfig(kind="vllm", urls=("http://127.0.0.1:8000", "http://127.0.0.1:8001"))
        >>> engine = VllmEngine(config, sync, facts, max_context_tokens=512)  # doctest: +SKIP
        >>> await engine.update_weights(0)  # doctest: +SKIP
        >>> await engine.generate([1, 5, 9], SamplingParams(seed=3), session_id="episode-0")  # doctest: +SKIP
    """

    def __init__(
        self,
        config: EngineConfig,
        sync: WeightSync,
        facts: ModelFacts,
        *,
        max_context_tokens: int,
        vision: PromptImages | None = None,
    ) -> None:
        """Create the engine without contacting the servers.

        Args:
            config: the engine's settings.
            sync: the transfer of the trainer's weights to the servers.
            facts: facts about the trainer's model; servers of other models are rejected.
            max_context_tokens: largest length of prompt plus completion; every server must have at least this context.
            vision: vision of a model that sees, whose prompts may hold images.
        """
        self._servers = LoadingPool(config, sync, facts, max_context_tokens)
        super().__init__(self._servers, facts, max_context_tokens, sleeps=config.sleep, vision=vision)
        self._config, self._sync = config, sync

    def share(self, place: int = 0, count: int = 1) -> None:
        """Let other processes sample from these servers too; call it before :meth:`connect`.

        Args:
            place, count: this process gives its weights to every ``count``-th server, from ``place`` on.
        """
        self._servers.share(place, count)

    def borrow(self, source: Source) -> None:
        """Take what is published from weights that all ranks gather, which they do before each :meth:`publish`."""
        self._sync.borrow(source)

    def forget(self) -> None:
        """Free the memory of the weights that were published; call it before the next ones are gathered."""
        self._sync.forget()

    async def connect(self, say: Callable[[str], None] = lambda line: None) -> None:
        """Wait for the first server that this run can use.

        Args:
            say: called from now on with a message when a server is excluded or comes back.

        Raises:
            ConfigError: a server serves another model, or no server was ready within ``start_timeout_s``.
        """
        self._check_open()
        self._pool.say = say
        await self._servers.wait_for_a_server(self._config.start_timeout_s)

    async def update_weights(self, version: int) -> None:
        """Send the trainer's current weights, as ``version``, to every ready server.

        A server keeps its requests in flight, or finishes them before (``engine.in_flight``). A server that does not
        load the weights is excluded until it does; the bits of its loaded parameters are the proof.

        Raises:
            EngineError: the weights could not be written, or no server loaded them in time.
            ClosedError: the engine was closed before.
        """
        served = await self._send(self.publish(version, self.dtypes), is_patient=True)
        self.server_stats.num_updated = len(served)
        if not served:
            limit = self._config.update_timeout_s
            raise EngineError(
                f"no vLLM server took the weights of version {version} within {limit:g} s: {self._pool.reasons()}"
            )

    @property
    def dtypes(self) -> frozenset[str]:
        """Dtypes of the servers' computation, as far as they have told this process."""
        return self._pool.readiness().dtypes

    def publish(self, version: int, dtypes: Collection[str] = ()) -> Published:
        """Make the trainer's current weights available to servers, as ``version``.

        Args:
            dtypes: dtypes of the servers' computation; none if no server has told its own.

        Raises:
            EngineError: the weights could not be written.
            ClosedError: the engine was closed before.
        """
        self._check_open()
        return self._sync.publish(version, dtypes or DTYPES)

    async def give(self, published: Published, *, is_patient: bool) -> Mapping[str, ProvenServer]:
        """See :meth:`ServersEngine.give`. The weights of this process are those that were published.

        Raises:
            EngineError: the weights could not be copied.
            ClosedError: the engine was closed before.
        """
        self._check_open()
        self._sync.follow(published)
        return await self._send(published, is_patient=is_patient)

    async def _send(self, published: Published, *, is_patient: bool) -> Mapping[str, ProvenServer]:
        if self._sleeps:
            free_unused()
        self.policy_version = published.version
        with boundary(EngineError, "update_weights"):
            limit = self._config.update_timeout_s
            return await self._servers.update(published, limit, is_patient=is_patient)

    async def rest(self) -> None:
        """Let the servers free their memory; no request may follow before the next :meth:`update_weights`."""
        self._check_open()
        with boundary(EngineError, "rest"):
            await self._servers.rest(self._config.update_timeout_s)

    async def close(self) -> None:
        """Disconnect from the servers, which keep running, and delete the weight files; a second call does nothing."""
        if self._is_closed:
            return
        await super().close()
        await asyncio.to_thread(self._sync.close)


class ReadOnlyServersEngine(ServersEngine):
    """An :class:`~agentgym.engine.Engine` over vLLM servers that other processes give their weights.

    Args:
        config: the engine's settings, equal to those of those processes.
        facts: facts about the trainer's model.
        max_context_tokens: largest length of prompt plus completion.
        say: called with a message when this process excludes a server, and when the server comes back.
        vision: vision of a model that sees, whose prompts may hold images.
    """

    def __init__(
        self,
        config: EngineConfig,
        facts: ModelFacts,
        *,
        max_context_tokens: int,
        say: Callable[[str], None] = lambda line: None,
        vision: PromptImages | None = None,
    ) -> None:
        super().__init__(GuestPool(config), facts, max_context_tokens, sleeps=config.sleep, vision=vision)
        self._pool.say = say

    async def give(self, published: Published, *, is_patient: bool) -> Mapping[str, ProvenServer]:
        """Return no servers, since this process has none to give weights."""
        return {}

    async def update_weights(self, version: int) -> None:
        """Do not call this.

        Raises:
            EngineError: always; other ranks give the servers their weights.
        """
        raise EngineError("other ranks give the servers their weights, and hand them over to this engine")
