"""A pool of vLLM servers: routing of requests, exclusion of failed servers, and the checks before a server may serve.

Each server has a keeper, a task that checks its health while it serves and otherwise tries to bring it back. There are
two pools: :class:`~agentgym.trainers.engines.vllm.guest.GuestPool` shares the servers with the processes that give them
their weights, and :class:`~agentgym.trainers.engines.vllm.loading.LoadingPool` gives weights to all or some of them.

A request goes to the server of its session's earlier requests, else to the one with the smallest load. A server that
fails a request is excluded at once. All of its requests are sent to other servers.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

import httpx

from agentgym.engine import EngineHealth
from agentgym.errors import EngineError, InfrastructureError, boundary
from agentgym.trainers.engines.changes import Changes
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.vllm.client import VllmClient, WrongServerError, make_http
from agentgym.trainers.engines.vllm.in_flight import Flight, Server, ServerState
from agentgym.trainers.engines.vllm.load import LoadTotals
from agentgym.trainers.engines.vllm.weights import Published
from agentgym.trainers.engines.vllm.wire import ServerFaultError, read_scores, score_body
from agentgym.types import Json

T = TypeVar("T")
MAX_HIDDEN_GAP = 0.01
"""Largest mean difference of log-probabilities for a server whose parameters cannot be read (a CPU, in float32)."""
_NUM_FAILED_CHECKS = 2
"""Number of consecutive failed health checks that count; a single one may come from a busy event loop."""


@dataclass
class PoolStats:
    """Counters since the pool was created."""

    num_updated: int = 0
    """Number of servers that took the last weights in time."""
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


class ServerPool(ABC):
    """The servers of one run.

    Attributes:
        say: called with a message when a server is excluded or comes back.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.say: Callable[[str], None] = lambda line: None
        self._http: httpx.AsyncClient | None = None
        self._keepers: list[asyncio.Task[None]] = []
        self._sessions: dict[str, Server] = {}
        self._is_closed = False
        self.servers: list[Server] = []
        self.stats = PoolStats()
        self._loads = LoadTotals()

    def health(self) -> EngineHealth:
        """Return the number of requests in flight and of ready servers."""
        out = [server.reason for server in self.servers if server.state is ServerState.OUT and server.reason]
        return EngineHealth(
            running=sum(server.load[0] for server in self.servers),
            servers=len(self._config.urls),
            ready=sum(server.state is not ServerState.OUT for server in self.servers),
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
        self.servers = [
            Server(client=VllmClient(url, self._http), is_own=self._is_own(url)) for url in self._config.urls
        ]
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
            server.state, server.reason = ServerState.OUT, "the engine was closed"
            server.cut()
        if self._http is not None:
            await self._http.aclose()

    # ------------------------------------------------------------------------------------------------- requests

    async def ask(
        self,
        session_id: str,
        what: str,
        post: Callable[[Server, Published, Flight], Awaitable[Json]],
        read: Callable[[Json, Published, Flight], T],
        *,
        can_be_kept: bool = False,
    ) -> T:
        """Ask a ready server, and another one if it fails.

        Args:
            session_id: the session of the request; empty if it has none.
            what: a name of the request for messages.
            post: sends the request to a server and returns the answer.
            read: checks the answer and returns its contents.
            can_be_kept: True if the request may continue with newer weights; ``read`` then uses
                :attr:`Flight.changes`.

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
                    answer = await post(server, published, flight)
                    await self._answered(server, flight, num_cuts)
                    return read(answer, published, flight)
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

    async def _answered(self, server: Server, flight: Flight, num_cuts: int) -> None:
        """Wait until it is known with which weights the server computed an answer.

        Raises:
            ServerFaultError: it computed with other weights than it was given.
        """
        if flight.changes:
            await self._settled(server, num_cuts)

    async def _settled(self, server: Server, num_cuts: int) -> None:
        await self._changes.until(lambda: server.state is not ServerState.UPDATING, self._config.update_timeout_s)
        if server.state is ServerState.UPDATING or server.num_cuts != num_cuts:
            raise ServerFaultError(server.reason)

    def forget(self, session_id: str) -> None:
        """Drop a session that has ended."""
        server = self._sessions.pop(session_id, None)
        if server is not None:
            server.num_sessions -= 1

    def reasons(self) -> str:
        """Return the reasons why servers are out, in one line."""
        return "; ".join(f"{s.client.url}: {s.reason}" for s in self.servers if s.state is not ServerState.READY)

    async def _next_server(self, session_id: str, failed: list[Server]) -> tuple[Server, Published]:
        chosen: list[Server] = []

        def found() -> bool:
            ready = [server for server in self.servers if server.state is ServerState.READY]
            fresh = [server for server in ready if server not in failed] or ready
            kept = self._sessions.get(session_id)
            chosen[:] = [kept] if kept in fresh else sorted(fresh, key=lambda server: server.load)[:1]
            return bool(chosen)

        def is_updating() -> bool:
            return any(server.state is ServerState.UPDATING and server.published is not None for server in self.servers)

        await self._changes.until(lambda: found() or self._are_all_taken(), self._config.server_wait_s)
        if self._are_all_taken():
            raise EngineError(self.reasons())
        if not chosen and is_updating():  # which takes its own time
            await self._changes.until(lambda: found() or not is_updating(), self._config.update_timeout_s)
        if not chosen:
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
        num_failed, keeper = 0, asyncio.current_task()
        assert keeper is not None
        while not keeper.cancelling():  # a failure at the same moment may have taken the cancellation's place
            server.wake.clear()
            try:
                with boundary(EngineError, "its keeper"):
                    if server.state in (ServerState.READY, ServerState.RESTING):
                        await server.client.health(self._config.health_timeout_s)
                        if (load := await server.client.load(self._config.health_timeout_s)) is not None:
                            self._loads.count(server.client.url, load)
                        await self._check_weights(server)
                    elif not self._is_idle(server):
                        await self._admit(server)
                num_failed = 0
            except (InfrastructureError, WrongServerError) as error:
                num_failed += 1
                server.is_wrong = isinstance(error, WrongServerError)
                if server.state not in (ServerState.READY, ServerState.RESTING) or num_failed >= _NUM_FAILED_CHECKS:
                    self._leave_out(server, str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.health_interval_s):
                    await server.wake.wait()

    async def _check_weights(self, server: Server) -> None:  # noqa: B027  (a pool that gives no weights has no check)
        """Exclude a server that serves and has no longer the weights that this process gave it."""

    def _are_all_taken(self) -> bool:
        return all(server.is_taken for server in self.servers)

    @abstractmethod
    def _is_own(self, url: str) -> bool:
        """Return True if this process gives the server its weights."""

    @abstractmethod
    def _is_idle(self, server: Server) -> bool:
        """Return True if there is nothing to do for a server that does not serve."""

    @abstractmethod
    async def _admit(self, server: Server) -> None:
        """Run all checks that a server must pass before it serves, in order.

        Raises:
            InfrastructureError: the server failed one, and may pass later.
            WrongServerError: this run cannot use the server.
        """

    async def _drain(self, server: Server) -> None:
        """Wait until the requests in flight end, so that all their tokens have one version; then end the rest."""
        if not await self._changes.until(lambda: not server.flights, self._config.request_timeout_s):
            server.cut()

    def _begin(self, server: Server, published: Published) -> None:
        """Send requests to a server from now on."""
        was_out, is_new = server.state is ServerState.OUT, server.published is None
        self.stats.num_readmitted += was_out and not is_new
        if was_out or (is_new and server.is_own):
            self.say(f"vLLM server {server.client.url} serves, version {published.version}")
        server.published, server.state = published, ServerState.READY
        self._changes.notify()

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
        if server.state is not ServerState.OUT and server.published is not None:
            self.stats.num_left_out += 1
            self.say(f"vLLM server {server.client.url} is left out: {reason}")
        server.state, server.reason = ServerState.OUT, reason
        server.cut()
        self._loads.forget(server.client.url)
        self._changes.notify()
