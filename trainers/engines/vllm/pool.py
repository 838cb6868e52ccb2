"""A pool of vLLM servers: routing of requests, exclusion of failed servers, and the proofs before a server may serve.

Each server has a keeper, a task that checks its health while it serves and otherwise tries to bring it back. A server
is ready only after these checks: it answers, it serves this run's model, it has the current weights (by the sum of
their bits), and it computes with them (by the log-probabilities of a few tokens).

A request goes to the server of its session's earlier requests, else to the one with the smallest load. A server that
fails a request is excluded at once. All of its requests are sent to other servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

import httpx

from agentgym.engine import EngineHealth
from agentgym.errors import ConfigError, EngineError, InfrastructureError, boundary
from agentgym.trainers.engines.changes import Changes
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.vllm.client import ModelFacts, VllmClient, WrongServerError, make_http
from agentgym.trainers.engines.vllm.in_flight import Flight, Pause, Server, State
from agentgym.trainers.engines.vllm.load import LoadTotals
from agentgym.trainers.engines.vllm.proof import prove
from agentgym.trainers.engines.vllm.weights import Published, WeightSync
from agentgym.trainers.engines.vllm.wire import ServerFaultError, read_scores, score_body

T = TypeVar("T")
MAX_HIDDEN_GAP = 0.01
"""Largest mean difference of log-probabilities for a server whose parameters cannot be read (a CPU, in float32)."""
_NUM_FAILED_CHECKS = 2
"""Number of consecutive failed health checks that count; a single one may come from a busy event loop."""


@dataclass
class PoolStats:
    """Counters since the pool was created."""

    num_left_out: int = 0
    num_readmitted: int = 0
    num_moved: int = 0
    """Number of requests that were sent again, to another server or to the same one after its return."""
    num_kept: int = 0
    """Number of requests that continued with newer weights, counted once per update."""
    num_hidden_parameters: int = 0
    """Number of parameters of the last checked server that could not be compared with the trainer's."""
    probe_gap: float = 0.0
    """Mean difference to the trainer's log-probabilities on the tokens scored by the last checked server."""


class ServerPool:
    """The servers of one run.

    Args:
        sync: the transfer of weights to servers.
        facts: facts about the model that every server must serve.
        max_context_tokens: the context length that every server must have.

    Attributes:
        say: called with a message when a server is excluded or comes back.
    """

    def __init__(self, config: EngineConfig, sync: WeightSync, facts: ModelFacts, max_context_tokens: int) -> None:
        self._config, self._sync, self._facts = config, sync, facts
        self.say: Callable[[str], None] = lambda line: None
        self._max_context_tokens = max_context_tokens
        self._http: httpx.AsyncClient | None = None
        self._keepers: list[asyncio.Task[None]] = []
        self._sessions: dict[str, Server] = {}
        self._target: Published | None = None
        self._is_closed = False
        self.servers: list[Server] = []
        self.dtypes: set[str] = set()
        """Dtypes of the servers' computation, as far as they have reported them."""
        self.stats = PoolStats()
        self._loads = LoadTotals()

    def health(self) -> EngineHealth:
        """Return the number of requests in flight and of ready servers."""
        out = [server.reason for server in self.servers if server.state is State.OUT and server.reason]
        return EngineHealth(
            running=sum(server.load[0] for server in self.servers),
            servers=len(self._config.urls),
            ready=sum(server.state is not State.OUT for server in self.servers),
            fault=out[0] if out else "",
            **self._loads.now(),  # type: ignore[arg-type]
        )

    # ------------------------------------------------------------------------------------------- start and end

    def start(self) -> None:
        """Start the supervision of the servers in the running event loop; a second call does nothing."""
        if self._http is not None:
            return
        self._http = make_http()
        self._changes = Changes()
        self.servers = [Server(client=VllmClient(url, self._http)) for url in self._config.urls]
        self._keepers = [
            asyncio.create_task(self._keep(server), name=f"keeper {s}") for s, server in enumerate(self.servers)
        ]

    async def close(self) -> None:
        """Stop the keepers and end the requests in flight; a second call does nothing."""
        self._is_closed = True
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._keepers = []
        for server in self.servers:
            server.state, server.reason = State.OUT, "the engine was closed"
            server.cut()
        if self._http is not None:
            await self._http.aclose()

    async def wait_for_a_server(self, timeout_s: float) -> None:
        """Wait until a server can be used.

        Raises:
            ConfigError: a server serves another model, or no server was ready in time.
        """
        self.start()

        def found() -> bool:
            for server in self.servers:
                if server.is_wrong:
                    raise ConfigError(server.reason)
            return any(server.model_name for server in self.servers)

        if not await self._changes.until(found, timeout_s):
            raise ConfigError(f"no vLLM server can be used after {timeout_s:g} s: {self.reasons()}")

    # -------------------------------------------------------------------------------------------------- weights

    async def update(self, published: Published, timeout_s: float) -> None:
        """Load new weights into every ready server; the others load them when they come back.

        From this call on, no request is sent to a server with other weights.

        Raises:
            EngineError: no server has the weights after ``timeout_s``.
        """
        self.start()
        self._target = published
        for server in self.servers:
            if server.state in (State.READY, State.RESTING):
                server.state = State.UPDATING
            server.wake.set()

        def settled() -> bool:
            states = [server.state for server in self.servers]
            return State.READY in states and State.UPDATING not in states

        await self._changes.until(settled, timeout_s)
        if not any(server.state is State.READY for server in self.servers):
            raise EngineError(
                f"no vLLM server took the weights of version {published.version} within {timeout_s:g} s: "
                + self.reasons()
            )

    async def rest(self, timeout_s: float) -> None:
        """Let every ready server free its memory until :meth:`update`; servers that fail to are excluded."""
        ready = [server for server in self.servers if server.state is State.READY]
        for server in ready:
            server.state = State.RESTING
        await asyncio.gather(*(self._rest(server, timeout_s) for server in ready))

    async def _rest(self, server: Server, timeout_s: float) -> None:
        await self._drain(server)
        try:
            await server.client.post("/sleep?level=1&mode=wait", {}, timeout_s, expects_json=False)
        except EngineError as error:
            self._leave_out(server, str(error))

    # ------------------------------------------------------------------------------------------------- requests

    async def ask(
        self,
        session_id: str,
        what: str,
        job: Callable[[Server, Published, Flight], Awaitable[T]],
        *,
        can_be_kept: bool = False,
    ) -> T:
        """Run ``job`` on a ready server, and on another one if it fails.

        Args:
            can_be_kept: True if the request may continue with newer weights; it then reads :attr:`Flight.changes`.

        Raises:
            EngineError: no server was ready in time, the request failed on ``max_attempts`` servers, or a server
                rejected the request itself.
        """
        self.start()
        failed: list[Server] = []
        fault = ""
        while len(failed) < self._config.max_attempts:
            server, published = await self._next_server(session_id, failed)
            self.stats.num_moved += bool(failed)
            num_cuts, timeout_s, flight = server.num_cuts, self._config.request_timeout_s, None
            try:
                async with server.busy(timeout_s, can_be_kept=can_be_kept) as flight:
                    result = await job(server, published, flight)
                    if flight.changes:
                        await self._must_serve(server, num_cuts)
                    return result
            except TimeoutError:
                fault = f"a {what} had no answer within {timeout_s:g} s"
            except ServerFaultError as error:
                fault = str(error)
            finally:
                self._changes.notify()
            if self._is_closed:
                raise EngineError(f"the engine was closed before the {what} was done")
            if flight is not None and flight.is_repeated:
                continue
            if server.num_cuts == num_cuts:
                self._leave_out(server, fault)
                server.wake.set()
            else:
                fault = server.reason
            failed.append(server)
        raise EngineError(f"{what} failed on {len(failed)} tries, the last on {server.client.url}: {fault}")

    async def _must_serve(self, server: Server, num_cuts: int) -> None:
        """Check that the server computes with the given weights.

        Raises:
            ServerFaultError: it does not.
        """
        await self._changes.until(lambda: server.state is not State.UPDATING, self._config.update_timeout_s)
        if server.state is State.UPDATING or server.num_cuts != num_cuts:
            raise ServerFaultError(server.reason)

    def forget(self, session_id: str) -> None:
        """Drop a session that has ended."""
        server = self._sessions.pop(session_id, None)
        if server is not None:
            server.num_sessions -= 1

    def reasons(self) -> str:
        """Return the reasons why servers are out, in one line."""
        return "; ".join(f"{s.client.url}: {s.reason}" for s in self.servers if s.state is not State.READY)

    async def _next_server(self, session_id: str, failed: list[Server]) -> tuple[Server, Published]:
        chosen: list[Server] = []

        def found() -> bool:
            ready = [server for server in self.servers if server.state is State.READY]
            fresh = [server for server in ready if server not in failed] or ready
            kept = self._sessions.get(session_id)
            chosen[:] = [kept] if kept in fresh else sorted(fresh, key=lambda server: server.load)[:1]
            return bool(chosen)

        if not await self._changes.until(found, self._config.server_wait_s):
            raise EngineError(f"no vLLM server was ready for {self._config.server_wait_s:g} s: {self.reasons()}")
        server = chosen[0]
        assert server.published is not None
        if session_id and self._sessions.get(session_id) is not server:
            self.forget(session_id)
            self._sessions[session_id] = server
            server.num_sessions += 1
        return server, server.published

    # -------------------------------------------------------------------------------------------------- keepers

    async def _keep(self, server: Server) -> None:
        num_failed = 0
        while True:
            server.wake.clear()
            try:
                with boundary(EngineError, "its keeper"):
                    if server.state in (State.READY, State.RESTING):
                        await server.client.health(self._config.health_timeout_s)
                        if (load := await server.client.load(self._config.health_timeout_s)) is not None:
                            self._loads.count(server.client.url, load)
                    elif not self._is_idle(server):
                        await self._admit(server)
                num_failed = 0
            except (InfrastructureError, WrongServerError) as error:
                num_failed += 1
                server.is_wrong = isinstance(error, WrongServerError)
                if server.state not in (State.READY, State.RESTING) or num_failed >= _NUM_FAILED_CHECKS:
                    self._leave_out(server, str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.health_interval_s):
                    await server.wake.wait()

    def _is_idle(self, server: Server) -> bool:
        """Return True if no weights have been published yet and the server has passed its checks."""
        return self._target is None and bool(server.model_name)

    async def _admit(self, server: Server) -> None:
        """Run all checks that a server must pass before it serves, in order."""
        config, client, target = self._config, server.client, self._target
        was_out, is_new = server.state is State.OUT, server.published is None
        pause = await self._pause(server, target)
        if pause is None:
            await self._drain(server)
        try:
            await client.health(config.health_timeout_s)
            base_name, length = await client.base_model(config.health_timeout_s)
            if config.sleep:  # also one that an earlier trainer left asleep
                await client.post("/wake_up", {}, config.update_timeout_s, expects_json=False)
            if was_out or is_new:  # perhaps a trainer was killed while the server was paused
                await client.post("/resume", {}, config.health_timeout_s)
            await client.held(config.health_timeout_s, self._facts)
            self.dtypes.add(client.dtype)
            if length < self._max_context_tokens:
                raise WrongServerError(
                    f"{client.url} has a context of {length} tokens, this run needs {self._max_context_tokens}; "
                    f"start it with --max-context-tokens {self._max_context_tokens}"
                )
            if target is None:
                server.model_name = base_name
                server.reason = "no weights were published yet"
                self._changes.notify()
                return
            server.model_name = await self._sync.install(
                client, base_name, target, config.update_timeout_s, is_paused=pause is not None
            )
            proof = await prove(client, target.evidence, config.update_timeout_s)
        finally:
            if pause is not None:
                with suppress(EngineError):  # if it is gone, there is nothing to resume
                    await pause.end()
        await self._probe(server, target, *proof)
        if self._target is not target:
            return
        self.stats.num_readmitted += was_out and not is_new
        if was_out or is_new:
            self.say(f"vLLM server {client.url} serves, version {target.version}")
        server.published, server.state = target, State.READY
        self._changes.notify()

    async def _pause(self, server: Server, target: Published | None) -> Pause | None:
        """Pause a server that keeps its requests during an update; return None if it must finish them before."""
        may_keep = self._config.keeps_requests and server.keeps_requests is not False
        if not may_keep or target is None or server.state is not State.UPDATING or not server.flights:
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
        return pause

    async def _drain(self, server: Server) -> None:
        """Wait until the requests in flight end, so that all their tokens have one version; then end the rest."""
        if not await self._changes.until(lambda: not server.flights, self._config.request_timeout_s):
            server.cut()

    async def _probe(self, server: Server, published: Published, dtype: str, num_hidden: int) -> None:
        """Let the server score tokens that the trainer has scored, with weights rounded to the server's dtype.

        A server may answer all other requests and still compute wrongly. If its parameters cannot be read, this is also
        the proof that it uses the new ones: on CPUs vLLM's reload does not update some parts of some models.
        """
        body = score_body(server.model_name, published.probe_ids, published.cache_salt)
        answer = await server.client.post("/v1/completions", body, self._config.request_timeout_s)
        scores = read_scores(answer, published.probe_ids, 1)
        gap = fmean(abs(a - b) for a, b in zip(scores, published.evidence.logprobs[dtype], strict=True))
        self.stats.probe_gap, self.stats.num_hidden_parameters = gap, num_hidden
        limit = min(self._config.max_probe_gap, MAX_HIDDEN_GAP) if num_hidden else self._config.max_probe_gap
        if gap > limit:
            raise ServerFaultError(
                f"it holds version {published.version} and computes with something else: its log-probabilities are "
                f"{gap:.3g} from the trainer's on average, above {limit:g} (engine.max_probe_gap"
                f"{f'; {num_hidden} of its parameters cannot be read' if num_hidden else ''})"
            )

    def _leave_out(self, server: Server, reason: str) -> None:
        if server.state is not State.OUT and server.published is not None:
            self.stats.num_left_out += 1
            self.say(f"vLLM server {server.client.url} is left out: {reason}")
        server.state, server.reason = State.OUT, reason
        server.cut()
        self._loads.forget(server.client.url)
        self._changes.notify()
