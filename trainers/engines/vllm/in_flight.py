"""The pool's state of one server, and its requests in flight during a weight update.

A server can keep its requests: it is paused, loads the weights and continues each request, with the cached keys and
values. Its workers report how many tokens each request had at the pause, so that every token of the completion has the
version of the weights that sampled it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto

from agentgym.canonical import is_whole
from agentgym.trainers.engines.changes import Changes
from agentgym.trainers.engines.vllm.client import VllmClient
from agentgym.trainers.engines.vllm.weights import Published
from agentgym.trainers.engines.vllm.wire import ServerFaultError

PAUSE = "/pause?mode=keep&clear_cache=false"
"""Route that pauses a server. Its prefix cache needs no clearing, because cache keys are salted with the version."""
ARRIVAL_S = 1.0
"""Seconds to wait, at a pause, for answers of requests that have already ended."""


class ServerState(Enum):
    """State of a server."""

    READY = auto()
    UPDATING = auto()
    """The server is loading the current weights, or waits for the first ones."""
    RESTING = auto()
    """The server has freed its memory until the next weights arrive."""
    OUT = auto()
    """The server failed, and is checked periodically."""


@dataclass(eq=False)
class Flight:
    """A request in flight."""

    limit: asyncio.Timeout
    """Timeout that ends the request."""
    can_be_kept: bool
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Name of the request at the server."""
    changes: list[tuple[int, int]] = field(default_factory=list)
    """First token with new weights, and their version, for each update since the request was sent."""
    is_repeated: bool = False
    """True if the request was ended to be sent again, without a failure of the server."""
    left_s: float = 0.0
    """Seconds left of its time limit at the pause."""

    def end(self) -> None:
        """End the request now."""
        if not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time())

    def repeat(self) -> None:
        """End the request now, to send it again."""
        self.is_repeated = True
        self.end()

    def keep(self, given: Mapping[str, int], version: int) -> bool:
        """Note the first token with the weights of ``version``; return False if the request cannot go on with them.

        Args:
            given: number of tokens of each request in flight, by name.
            version: the version of the new weights.
        """
        if not self.can_be_kept or self.name not in given:
            return False
        self.changes.append((given[self.name], version))
        return True

    def hold(self) -> None:
        """Suspend the time limit."""
        if not self.limit.expired() and (when := self.limit.when()) is not None:
            self.left_s = when - asyncio.get_running_loop().time()
            self.limit.reschedule(None)

    def go_on(self) -> None:
        """Resume the time limit."""
        if not self.limit.expired() and self.limit.when() is None:
            self.limit.reschedule(asyncio.get_running_loop().time() + self.left_s)


@dataclass(eq=False)
class Server:
    """The pool's state of one server."""

    client: VllmClient
    is_own: bool
    """True if this process gives the server its weights."""
    state: ServerState = ServerState.UPDATING
    reason: str = "it was not asked yet"
    """Reason why the server is out."""
    is_wrong: bool = False
    """True if the server answers but does not fit this run."""
    is_taken: bool = False
    """True if another run has given the server weights; this run does not use it again."""
    model_name: str = ""
    """Name of the model in requests; it changes with each start of the server."""
    published: Published | None = None
    """Weights that the server has proved to have."""
    num_sessions: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    flights: set[Flight] = field(default_factory=set)
    num_cuts: int = 0
    """Number of times that all requests were ended; a request uses it to see that its end is not a new failure."""
    keeps_requests: bool | None = None
    """None before it was first paused with requests in flight."""
    given: Mapping[str, int] | None = None
    """Number of tokens of each request in flight at the last pause, by name; None if the server was not paused."""

    @property
    def load(self) -> tuple[int, int]:
        """Load for comparison: requests in flight, then sessions that would return to the server."""
        return len(self.flights), self.num_sessions

    @asynccontextmanager
    async def busy(self, timeout_s: float, *, can_be_kept: bool) -> AsyncIterator[Flight]:
        """Context of a request; raise ``TimeoutError`` if it takes too long or is ended."""
        async with asyncio.timeout(timeout_s) as limit:
            flight = Flight(limit, can_be_kept)
            self.flights.add(flight)
            try:
                yield flight
            finally:
                self.flights.discard(flight)

    def cut(self) -> None:
        """End the requests in flight."""
        self.num_cuts += 1
        for flight in tuple(self.flights):
            flight.end()


class Pause:
    """A server that was paused with requests in flight.

    Attributes:
        num_kept: requests that go on with the new weights.
        given: number of tokens of each request in flight, by name.
    """

    def __init__(self, server: Server, changes: Changes, timeout_s: float) -> None:
        self._server, self._changes, self._timeout_s = server, changes, timeout_s
        self.num_kept = 0
        self.given: Mapping[str, int] = {}

    async def begin(self, version: int) -> bool:
        """Pause the server, and record the token from which on each request uses the weights of ``version``.

        Requests that the server has not begun, and scoring requests, are ended and sent again afterwards.

        Returns:
            False, with the server resumed, if its workers do not report the progress of requests.

        Raises:
            ServerFaultError: the server did not answer.
        """
        await self._server.client.post(PAUSE, {}, self._timeout_s)
        try:
            given = await tokens_given(self._server.client, self._timeout_s)
        except ServerFaultError:  # perhaps an older serve-model started it
            given = None
        self._server.keeps_requests = given is not None
        if given is None:
            await self.end()
            return False

        def all_are_known() -> bool:
            return all(f.name in given for f in self._server.flights if f.can_be_kept)

        await self._changes.until(all_are_known, ARRIVAL_S)
        self.given = given
        for flight in tuple(self._server.flights):
            if flight.keep(given, version):
                flight.hold()
                self.num_kept += 1
            else:
                flight.repeat()
        return True

    async def end(self) -> None:
        """Resume the server. The time of the pause does not count for its requests.

        Raises:
            ServerFaultError: the server did not answer.
        """
        try:
            await self._server.client.post("/resume", {}, self._timeout_s)
        finally:
            for flight in self._server.flights:
                flight.go_on()


async def tokens_given(client: VllmClient, timeout_s: float) -> dict[str, int] | None:
    """Return the number of tokens of each request in flight, by our name; None if a worker does not report it.

    The server's own names are ``cmpl-NAME-0-`` and some letters, or for prompts with images ``generate-tokens-NAME``
    and some.

    Raises:
        ServerFaultError: the server did not answer.
    """
    found: dict[str, int] = {}
    for worker in await client.rpc("agentgym_in_flight", {}, timeout_s):
        tokens = worker.get("tokens")
        if not isinstance(tokens, Mapping):
            return None
        for name, count in tokens.items():
            own = str(name).removeprefix("cmpl-").removeprefix("generate-tokens-")
            if own != str(name) and is_whole(count):
                own = own.split("-")[0]
                found[own] = max(count, found.get(own, 0))
    return found
