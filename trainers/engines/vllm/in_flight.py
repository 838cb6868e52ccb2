"""One server as the pool sees it, and the requests in flight on it while it takes new weights.

A server can keep them: it is paused, takes the weights and goes on with each request where it was, with the keys and
values that it has. Its workers say how many tokens each request had at the pause, so that every token of the
completion has the version of the weights it was sampled with.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto

from agentgym.trainers.engines.changes import Changes
from agentgym.trainers.engines.vllm.client import VllmClient
from agentgym.trainers.engines.vllm.weights import Published
from agentgym.trainers.engines.vllm.wire import ServerFaultError

PAUSE = "/pause?mode=keep&clear_cache=false"
"""Prefixes of older weights are never found, since the cache is salted with the version."""
ARRIVAL_S = 1.0
"""How long to wait, at a pause, for answers of requests that have ended."""


class State(Enum):
    """State of a server."""

    READY = auto()
    UPDATING = auto()
    """It is getting the current weights, or waits for the first ones."""
    RESTING = auto()
    """It has given up its memory until the next weights come."""
    OUT = auto()
    """It failed, and is asked again and again."""


@dataclass(eq=False)
class Flight:
    """A request in flight."""

    limit: asyncio.Timeout
    """Ends it."""
    can_be_kept: bool
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Of the request, at the server."""
    changes: list[tuple[int, int]] = field(default_factory=list)
    """The first token sampled with newer weights, and their version, for each update since it was sent."""
    is_repeated: bool = False
    """It was ended to be asked again, through no fault of the server's."""
    left_s: float = 0.0
    """What its limit had left at the pause."""

    def end(self) -> None:
        """End it now."""
        if not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time())

    def hold(self) -> None:
        """Stop its clock."""
        if not self.limit.expired() and (when := self.limit.when()) is not None:
            self.left_s = when - asyncio.get_running_loop().time()
            self.limit.reschedule(None)

    def go_on(self) -> None:
        """Let its clock run again."""
        if not self.limit.expired() and self.limit.when() is None:
            self.limit.reschedule(asyncio.get_running_loop().time() + self.left_s)


@dataclass(eq=False)
class Server:
    """One server as the pool sees it."""

    client: VllmClient
    state: State = State.UPDATING
    reason: str = "it was not asked yet"
    """Why it is out."""
    is_wrong: bool = False
    """It answers, and cannot be used for this run."""
    model_name: str = ""
    """What requests call the model; another name after each start of the server."""
    published: Published | None = None
    """The weights it was seen to hold."""
    num_sessions: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    flights: set[Flight] = field(default_factory=set)
    num_cuts: int = 0
    """By which a request knows that it was ended with others, and says nothing new of the server."""
    keeps_requests: bool | None = None
    """None before it was first paused with requests in flight."""

    @property
    def load(self) -> tuple[int, int]:
        """Requests in flight, then sessions that would come back to it."""
        return len(self.flights), self.num_sessions

    @asynccontextmanager
    async def busy(self, timeout_s: float, *, can_be_kept: bool) -> AsyncIterator[Flight]:
        """Around a request; ``TimeoutError`` when it took too long or was ended."""
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
    """

    def __init__(self, server: Server, changes: Changes, timeout_s: float) -> None:
        self._server, self._changes, self._timeout_s = server, changes, timeout_s
        self.num_kept = 0

    async def begin(self, version: int) -> bool:
        """Pause the server, and note at which token each request changes to the weights of ``version``.

        Requests that the server has not begun, and those that score, are ended and asked again afterwards.

        Returns:
            False, with the server going on, if its workers do not say how far its requests have come.

        Raises:
            ServerFaultError: it did not answer.
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
        for flight in tuple(self._server.flights):
            if flight.can_be_kept and flight.name in given:
                flight.changes.append((given[flight.name], version))
                flight.hold()
                self.num_kept += 1
            else:
                flight.is_repeated = True
                flight.end()
        return True

    async def end(self) -> None:
        """Let the server go on. The time of the pause does not count for its requests.

        Raises:
            ServerFaultError: it did not answer.
        """
        try:
            await self._server.client.post("/resume", {}, self._timeout_s)
        finally:
            for flight in self._server.flights:
                flight.go_on()


async def tokens_given(client: VllmClient, timeout_s: float) -> dict[str, int] | None:
    """Return the number of tokens of each request in flight, by the name it was sent with; None if a worker cannot say.

    The server's own names are ``cmpl-NAME-0-`` and some letters.

    Raises:
        ServerFaultError: it did not answer.
    """
    found: dict[str, int] = {}
    for worker in await client.rpc("agentgym_in_flight", {}, timeout_s):
        tokens = worker.get("tokens")
        if not isinstance(tokens, Mapping):
            return None
        for name, count in tokens.items():
            parts = str(name).split("-")
            if parts[0] == "cmpl" and len(parts) > 1 and isinstance(count, int):
                found[parts[1]] = max(count, found.get(parts[1], 0))
    return found
