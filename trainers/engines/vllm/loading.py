"""The pool of a process that gives servers their weights: all of them, or its share."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from agentgym.errors import ConfigError, EngineError, InfrastructureError
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.vllm.client import ModelFacts, VllmClient, WrongServerError
from agentgym.trainers.engines.vllm.guest import GuestPool
from agentgym.trainers.engines.vllm.in_flight import Pause, Server, ServerState
from agentgym.trainers.engines.vllm.plugin.agentgym_vllm import NO_VERSION
from agentgym.trainers.engines.vllm.proof import prove
from agentgym.trainers.engines.vllm.weights import ProvenServer, Published, WeightSync

SLEEP = "/sleep?level=1&mode=wait"
"""Route by which a server frees the memory of its cache, and moves its weights to the machine's memory."""

_STARTED_FOR = {
    "lora": "--lora-rank RANK, which is model.lora.rank",
    "ipc": "--weight-transfer ipc",
    "nccl": "--weight-transfer nccl",
}
"""Options of ``agentgym serve-model`` without which a server does not take weights in a way."""


class LoadingPool(GuestPool):
    """The servers of one run, which this process manages, or its share of them; it is a guest of the others.

    A server is ready only after these checks: it answers, it serves this run's model, it has the current weights (by
    the sum of their bits), and it computes with them (by the log-probabilities of a few tokens).

    Args:
        sync: the transfer of weights to servers.
        facts: facts about the model that every server must serve.
        max_context_tokens: the context length that every server must have.
    """

    def __init__(self, config: EngineConfig, sync: WeightSync, facts: ModelFacts, max_context_tokens: int) -> None:
        super().__init__(config)
        self._sync, self._facts, self._max_context_tokens = sync, facts, max_context_tokens
        self._target: Published | None = None
        self._own_urls = frozenset(config.urls)
        self._is_shared = self._is_resting = False

    def share(self, place: int, count: int) -> None:
        """Let other processes send requests to these servers too; call it before :meth:`start`.

        Args:
            place, count: this process gives its weights to every ``count``-th server, from ``place`` on.
        """
        urls = self._config.urls
        first = place % len(urls)  # of equal loads the first server is chosen
        self._config = replace(self._config, urls=(*urls[first:], *urls[:first]))
        self._is_shared, self._own_urls = True, frozenset(urls[place::count])

    async def wait_for_a_server(self, timeout_s: float) -> None:
        """Wait until a server can be used, and all that this process gives weights were asked once.

        Raises:
            ConfigError: a server serves another model, or no server was ready in time.
        """
        self.start()

        def found() -> bool:
            for server in self.servers:
                if server.is_wrong:
                    raise ConfigError(server.reason)
            unasked = [s for s in self._own if not s.model_name and s.state is not ServerState.OUT]
            return any(server.model_name for server in self.servers) and not unasked

        if not await self._changes.until(found, timeout_s):
            raise ConfigError(f"no vLLM server can be used after {timeout_s:g} s: {self.reasons()}")
        for server in self._own:
            if server.state is ServerState.OUT and not server.model_name:
                self.say(f"vLLM server {server.client.url} does not serve yet: {server.reason}")

    @property
    def _own(self) -> list[Server]:
        return [server for server in self.servers if server.is_own]

    async def update(
        self, published: Published, timeout_s: float, *, is_patient: bool = True
    ) -> dict[str, ProvenServer]:
        """Load new weights into every ready server; the others load them when they come back.

        From this call on, no request is sent to a server with other weights.

        Args:
            is_patient: wait until a server has them, also if none is ready now.

        Returns:
            the servers that have the weights by address; none after ``timeout_s``.
        """
        self.start()
        self._target, self._is_resting = published, False
        for server in self._own:
            if server.state in (ServerState.READY, ServerState.RESTING):
                server.state = ServerState.UPDATING
            server.wake.set()

        def settled() -> bool:
            states = [server.state for server in self._own if not server.is_taken]
            return ServerState.UPDATING not in states and (ServerState.READY in states or not is_patient or not states)

        if self._own:
            await self._changes.until(settled, timeout_s)
        ready = [server for server in self._own if server.state is ServerState.READY]
        return {server.client.url: ProvenServer(name=server.model_name, given=server.given) for server in ready}

    async def rest(self, timeout_s: float) -> None:
        """Let every ready server free its memory until :meth:`update`; servers that fail to are excluded.

        One that comes back meanwhile is put to sleep, too.
        """
        self._is_resting = True
        ready = [server for server in self._own if server.state is ServerState.READY]
        for server in ready:
            server.state = ServerState.RESTING
        await asyncio.gather(*(self._rest(server, timeout_s) for server in ready))

    async def _rest(self, server: Server, timeout_s: float) -> None:
        await self._drain(server)
        try:
            await server.client.post(SLEEP, {}, timeout_s, expects_json=False)
        except EngineError as error:
            self._leave_out(server, str(error))

    # -------------------------------------------------------------------------------------------------- keepers

    def _is_own(self, url: str) -> bool:
        return url in self._own_urls

    def _is_idle(self, server: Server) -> bool:
        """Return True if no weights have been published yet and the server has passed its checks."""
        published = self._target if server.is_own else self._adopted
        return server.is_taken or (published is None and bool(server.model_name))

    async def _check_weights(self, server: Server) -> None:
        """Exclude a server for the rest of the run if another run has given it weights.

        Its requests are sampled with weights that are not their version's. To load this run's weights again would spoil
        the other run's. Adapters have names of their own.
        """
        published = server.published
        if not server.is_own or self._config.weight_sync == "lora":
            return
        asked = asyncio.ensure_future(server.client.held(self._config.health_timeout_s))
        woken = asyncio.ensure_future(server.wake.wait())
        try:
            await asyncio.wait({asked, woken}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():  # new weights do not wait for the answer
                return
            held = asked.result()
        except InfrastructureError:  # a busy server, which its requests' time limit is for
            return
        finally:
            asked.cancel()
            woken.cancel()
            await asyncio.gather(asked, woken, return_exceptions=True)
        is_same = server.state is ServerState.READY and server.published is published
        if is_same and published is not None and held != published.held and held.version != NO_VERSION:
            server.is_taken = True
            self._leave_out(
                server,
                f"another run has given it weights (version {held.version}); start a server for each run, then resume",
            )

    async def _admit(self, server: Server) -> None:
        """Run all checks that a server must pass before it serves, in order."""
        if server.is_own:
            await self._admit_own(server)
        elif self._adopted is not None:
            await super()._admit(server)
        else:
            await server.client.health(self._config.health_timeout_s)
            await self._meet(server, *await server.client.base_model(self._config.health_timeout_s))

    async def _admit_own(self, server: Server) -> None:
        config, client, target = self._config, server.client, self._target
        pause = await self._pause(server, target)
        if pause is None:
            await self._drain(server)
        try:
            await client.health(config.health_timeout_s)
            base_name, length = await client.base_model(config.health_timeout_s)
            if self._is_resting and target is not None:
                await self._put_to_sleep(server, base_name)
                return
            if config.sleep:  # also one that an earlier trainer left asleep
                await client.post("/wake_up", {}, config.update_timeout_s, expects_json=False)
            if (
                server.state is ServerState.OUT or server.published is None
            ):  # perhaps a trainer was killed while it was paused
                await client.post("/resume", {}, config.health_timeout_s)
            if target is None:
                await self._meet(server, base_name, length)
                return
            await self._check(client, length)
            server.model_name = await self._sync.install(
                client, base_name, target, config.update_timeout_s, is_paused=pause is not None
            )
            proof = await prove(client, target.evidence, config.update_timeout_s)
        finally:
            if pause is not None:
                with suppress(EngineError):  # if it is gone, there is nothing to resume
                    await pause.end()
        await self._probe(server, target, *proof)
        if self._target is target:
            self._begin(server, target)

    async def _meet(self, server: Server, base_name: str, length: int) -> None:
        """Check a server before the first weights are published."""
        await self._check(server.client, length)
        if server.is_own:
            await self._sync.check(server.client, self._config.health_timeout_s)
            if self._config.sleep:  # the warm start, which needs the memory, comes before the first weights
                await server.client.post(SLEEP, {}, self._config.update_timeout_s, expects_json=False)
        server.model_name = base_name
        server.reason = "no weights were published yet"
        self._changes.notify()

    async def _check(self, client: VllmClient, length: int) -> None:
        """Check that a server has this run's model, a context that is long enough, and was started for what it must do.

        Raises:
            WrongServerError: it does not.
        """
        await client.held(self._config.health_timeout_s, self._facts)
        self.dtypes.add(client.dtype)
        if self._config.sleep and not client.can_sleep:  # vLLM would answer that it sleeps, and free nothing
            raise WrongServerError(
                f"{client.url} cannot sleep, which engine.sleep=true needs; start it with --sleep, or set "
                "engine.sleep=false"
            )
        way = self._config.weight_sync
        if way in _STARTED_FOR and client.takes is not None and way not in client.takes:
            raise WrongServerError(
                f"{client.url} was not started for engine.weight_sync={way}; start it with {_STARTED_FOR[way]}, or set "
                "engine.weight_sync=folder"
            )
        if length < self._max_context_tokens:
            raise WrongServerError(
                f"{client.url} has a context of {length} tokens, this run needs {self._max_context_tokens}; "
                f"start it with --max-context-tokens {self._max_context_tokens}"
            )

    async def _put_to_sleep(self, server: Server, base_name: str) -> None:
        """Let a server that came back sleep until the next weights, as the others do."""
        await server.client.post(SLEEP, {}, self._config.update_timeout_s, expects_json=False)
        if self._is_resting:  # else the next weights are here, and its keeper goes on with them
            server.model_name, server.state = base_name, ServerState.RESTING
            self.stats.num_readmitted += 1
            self.say(f"vLLM server {server.client.url} is back, and sleeps until the next weights")
            self._changes.notify()

    async def _pause(self, server: Server, target: Published | None) -> Pause | None:
        """Pause a server that keeps its requests during an update; return None if it must finish them before."""
        may_keep = self._config.keeps_requests and server.keeps_requests is not False
        server.given = None
        if not may_keep or target is None or server.state is not ServerState.UPDATING:
            return None
        if not server.flights and not self._is_shared:
            return None
        is_first = server.keeps_requests is None
        pause = Pause(server, self._changes, self._config.update_timeout_s)
        if not await pause.begin(target.version):
            self.say(
                f"vLLM server {server.client.url} ends its requests before it takes new weights: its workers do not "
                "say how far these have come"
            )
            return None
        if is_first:
            self.say(f"vLLM server {server.client.url} keeps its requests while it takes new weights")
        self.stats.num_kept += pause.num_kept
        server.given = pause.given
        return pause
