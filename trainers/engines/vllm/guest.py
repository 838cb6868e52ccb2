"""The engine of a process that samples from vLLM servers to which another process gives the weights.

Of the ranks that train one model, the first one gives the servers their weights. Every rank sends requests to all of
them. At each update the ranks do this together:

1. :meth:`GuestEngine.hold`: no guest sends requests any more. Those in flight end, or stay (``engine.in_flight``).
2. The first rank updates the servers, which tell it how many tokens each request had at that time, whoever sent it.
3. :meth:`GuestEngine.adopt`: the guests learn that, and send requests to the servers that have proved to have the
   weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agentgym.errors import EngineError, boundary
from agentgym.trainers.distributed.devices import free_unused
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.vllm.client import ModelFacts
from agentgym.trainers.engines.vllm.in_flight import Flight, Server, State
from agentgym.trainers.engines.vllm.pool import ServerPool
from agentgym.trainers.engines.vllm.proof import prove
from agentgym.trainers.engines.vllm.server import ServersEngine
from agentgym.trainers.engines.vllm.weights import Handover, NameOf, Served, name_with_adapters, name_with_weights
from agentgym.trainers.engines.vllm.wire import ServerFaultError


class GuestPool(ServerPool):
    """The servers of one run, which another process manages.

    A server that this process excluded, or that was not ready at the last update, serves again when it has proved to
    have the weights of that update.
    """

    _says_what_is_new = False  # the other process says it

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._name_of: NameOf = name_with_adapters if config.weight_sync == "lora" else name_with_weights

    async def hold(self) -> None:
        """Send no requests until :meth:`adopt`. Requests in flight stay, or this waits until they end."""
        self.start()
        self._target = None
        held = [server for server in self.servers if server.state is State.READY]
        for server in held:
            server.state = State.UPDATING
            for flight in server.flights if self._config.keeps_requests else ():
                flight.hold()
        if not self._config.keeps_requests:
            await asyncio.gather(*(self._drain(server) for server in held))

    def adopt(self, handover: Handover) -> None:
        """Send requests to the servers that have new weights, and to no others."""
        self.start()
        self._target = handover.published
        for server in self.servers:
            served = handover.servers.get(server.client.url)
            if served is not None:
                self._let_go_on(server, served, handover.published.version)
                server.model_name = served.name
                self._begin(server, handover.published)
            elif server.state is not State.OUT:
                self._leave_out(server, "the first rank left it out")

    def _let_go_on(self, server: Server, served: Served, version: int) -> None:
        """Let requests that were held go on; repeat those of which it is not known with which weights they began."""
        for flight in tuple(server.flights):
            if flight.keep(served.given or {}, version):
                flight.go_on()
                self.stats.num_kept += 1
            else:
                flight.repeat()

    async def _answered(self, server: Server, flight: Flight, num_cuts: int) -> None:
        # while it is held, the server may have gone on with new weights already
        if flight.changes or self._config.keeps_requests:
            await self._settled(server, num_cuts)

    def _is_idle(self, server: Server) -> bool:
        return self._target is None

    async def _admit(self, server: Server) -> None:
        config, client, target = self._config, server.client, self._target
        assert target is not None, "there is nothing to do before the first weights"
        await client.health(config.health_timeout_s)
        base_name, _ = await client.base_model(config.health_timeout_s)
        name = await self._name_of(client, base_name, target, config.health_timeout_s)
        if not name:
            raise ServerFaultError(f"the first rank has not given it version {target.version} yet")
        proof = await prove(client, target.evidence, config.update_timeout_s)
        server.model_name = name
        await self._probe(server, target, *proof)
        if self._target is target:
            self._begin(server, target)


class GuestEngine(ServersEngine):
    """An :class:`~agentgym.engine.Engine` over vLLM servers that another process gives their weights.

    Args:
        config: the engine's settings, equal to those of that process.
        facts: facts about the trainer's model.
        max_context_tokens: largest length of prompt plus completion.
        say: called with a message when this process excludes a server, and when the server comes back.
    """

    def __init__(
        self,
        config: EngineConfig,
        facts: ModelFacts,
        *,
        max_context_tokens: int,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._servers = GuestPool(config)
        self._servers.say = say
        self._sleeps = config.sleep
        super().__init__(self._servers, facts, max_context_tokens)

    async def hold(self) -> None:
        """Send no requests until :meth:`adopt`; return when the servers may get new weights.

        Raises:
            ClosedError: the engine was closed before.
        """
        self._check_open()
        if self._sleeps:
            free_unused()
        with boundary(EngineError, "hold"):
            await self._servers.hold()

    def adopt(self, handover: Handover) -> None:
        """Send requests to the servers that have new weights.

        Raises:
            ClosedError: the engine was closed before.
        """
        self._check_open()
        self.policy_version = handover.published.version
        self._servers.adopt(handover)

    async def update_weights(self, version: int) -> None:
        """Do not call this.

        Raises:
            EngineError: always; the first rank gives the servers their weights.
        """
        raise EngineError("the first rank gives the servers their weights, and hands them over to this engine")
