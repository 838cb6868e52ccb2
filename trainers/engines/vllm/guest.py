"""The pool of a process that samples from vLLM servers to which other processes give the weights."""

from __future__ import annotations

import asyncio

from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.vllm.in_flight import Flight, Server, ServerState
from agentgym.trainers.engines.vllm.pool import ServerPool
from agentgym.trainers.engines.vllm.proof import prove
from agentgym.trainers.engines.vllm.weights import (
    Handover,
    NameOf,
    ProvenServer,
    Published,
    Readiness,
    name_with_adapters,
    name_with_weights,
)
from agentgym.trainers.engines.vllm.wire import ServerFaultError


class GuestPool(ServerPool):
    """The servers of one run, which other processes manage.

    A server that this process excluded, or that was not ready at the last update, serves again when it has proved to
    have the weights of that update.

    Attributes:
        dtypes: dtypes of the servers' computation, as far as this process was told.
    """

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.dtypes: set[str] = set()
        self._adopted: Published | None = None
        self._name_of: NameOf = name_with_adapters if config.weight_sync == "lora" else name_with_weights

    async def hold(self) -> None:
        """Send no requests to servers of others until :meth:`adopt`; those in flight stay, or this waits for them."""
        self.start()
        self._adopted = None
        held = [server for server in self.servers if server.state is ServerState.READY and not server.is_own]
        for server in held:
            server.state = ServerState.UPDATING
            for flight in server.flights if self._config.keeps_requests else ():
                flight.hold()
        if not self._config.keeps_requests:
            await asyncio.gather(*(self._drain(server) for server in held))

    def readiness(self) -> Readiness:
        """Return what the process that publishes weights must know of this one's servers."""
        states = [server.state for server in self.servers if server.is_own]
        num_ready = sum(state in (ServerState.READY, ServerState.RESTING) for state in states)
        return Readiness(num_ready=num_ready, dtypes=frozenset(self.dtypes))

    def adopt(self, handover: Handover) -> None:
        """Send requests to the servers of others that have new weights, and not to those that have none."""
        self.start()
        self._adopted = handover.published
        for server in self.servers:
            if server.is_own:
                continue
            served = handover.servers.get(server.client.url)
            if served is not None:
                self._let_go_on(server, served, handover.published.version)
                server.model_name = served.name
                self._begin(server, handover.published)
            elif server.state is not ServerState.OUT:
                self._leave_out(server, "the rank that gives it weights left it out")

    def _let_go_on(self, server: Server, served: ProvenServer, version: int) -> None:
        """Let requests that were held go on; repeat those of which it is not known with which weights they began."""
        for flight in tuple(server.flights):
            if flight.keep(served.given or {}, version):
                flight.go_on()
                self.stats.num_kept += 1
            else:
                flight.repeat()

    async def _answered(self, server: Server, flight: Flight, num_cuts: int) -> None:
        # while it is held, the server may have gone on with new weights already
        if flight.changes or (self._config.keeps_requests and not server.is_own):
            await self._settled(server, num_cuts)

    def _is_own(self, url: str) -> bool:
        return False

    def _is_idle(self, server: Server) -> bool:
        return self._adopted is None

    async def _admit(self, server: Server) -> None:
        config, client, target = self._config, server.client, self._adopted
        assert target is not None, "there is nothing to do before the first weights"
        await client.health(config.health_timeout_s)
        base_name, _ = await client.base_model(config.health_timeout_s)
        name = await self._name_of(client, base_name, target, config.health_timeout_s)
        if not name:
            raise ServerFaultError(f"no rank has given it version {target.version} yet")
        proof = await prove(client, target.evidence, config.update_timeout_s)
        server.model_name = name
        await self._probe(server, target, *proof)
        if self._adopted is target:
            self._begin(server, target)
