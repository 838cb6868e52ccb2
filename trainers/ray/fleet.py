"""Supervision of the actors of one kind: periodic health checks, and preparation of restarted actors.

Ray itself restarts a dead actor with its original arguments and under the same handle. The keeper of an actor adds
three things: it notices the restart, gives the new actor what it needs before it is used, and kills an actor that
hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError

from agentgym.errors import AgentGymError, ConfigError, InfrastructureError
from agentgym.trainers.config.cluster import ClusterConfig
from agentgym.trainers.engines.changes import Changes
from agentgym.trainers.ray.actor_state import ActorState

_NUM_SLICES = 4


class MemberState(Enum):
    """State of a member."""

    OUT = auto()
    """The actor does not answer."""
    UPDATING = auto()
    """The actor answers, and is being prepared."""
    READY = auto()


@dataclass(eq=False)
class FleetActor:
    """An actor and its fleet's knowledge about it."""

    index: int
    handle: ActorHandle
    state: MemberState = MemberState.OUT
    reason: str = "it has not started yet"
    """Reason why the actor is not available."""
    incarnation: str = ""
    load: int = 0
    """Number of uses that have not ended."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class FleetStats:
    """Counters since the fleet was created."""

    num_lost: int = 0
    """Number of times that a running actor died, or was killed because it did not answer."""
    num_hung: int = 0
    """Number of times that an actor was killed because it did not answer."""
    num_restarts: int = 0
    """Number of times that a restarted actor answered."""


Admit = Callable[[FleetActor, ActorState], Awaitable[None]]
"""Type of the function that prepares a member after a start. If it raises, the member stays out until the next try."""


async def nothing_needed(member: FleetActor, found: ActorState) -> None:
    """Do nothing, for actors that are ready as soon as they answer."""


class Fleet:
    """The actors of one kind.

    Args:
        kind: name of the kind, for messages.
        admit: called each time a member has answered.
        is_ours: False if another process started the actors. It then ends them, and kills those that hang.
    """

    def __init__(
        self,
        kind: str,
        handles: Sequence[ActorHandle],
        config: ClusterConfig,
        admit: Admit = nothing_needed,
        *,
        is_ours: bool = True,
    ) -> None:
        self._kind, self._config, self._admit, self.is_ours = kind, config, admit, is_ours
        self.members = [FleetActor(index, handle) for index, handle in enumerate(handles)]
        self.say: Callable[[str], None] = lambda line: None
        self.stats = FleetStats()
        self.changes = Changes()
        self.found: dict[str, ActorState] = {}
        """The last answer of each start of an actor, by incarnation."""
        self.on_answer: Callable[[ActorState], None] = lambda found: None
        self._keepers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the supervision in the running event loop; a second call does nothing."""
        if not self._keepers:
            names = [f"{self._kind} {member.index}" for member in self.members]
            self._keepers = [
                asyncio.create_task(self._keep(m), name=f"keeper {n}") for m, n in zip(self.members, names, strict=True)
            ]

    async def wait_for_one(self) -> None:
        """Wait until the first member has answered.

        Raises:
            ConfigError: no member answered in time.
        """
        self.start()
        timeout_s = self._config.start_timeout_s
        if not await self.changes.until(lambda: any(m.state is not MemberState.OUT for m in self.members), timeout_s):
            raise ConfigError(
                f"no {self._kind} was up after {timeout_s:g} s (cluster.start_timeout_s): {self.reasons()}"
            )

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[FleetActor]:
        """Lend the ready member with the smallest load; wait if no member is ready.

        Raises:
            InfrastructureError: no member was ready for ``wait_s``.
        """
        self.start()

        def ready() -> list[FleetActor]:
            return [member for member in self.members if member.state is MemberState.READY]

        if not await self.changes.until(lambda: bool(ready()), self._config.wait_s):
            raise InfrastructureError(f"no {self._kind} was ready for {self._config.wait_s:g} s: {self.reasons()}")
        member = min(ready(), key=lambda member: member.load)
        member.load += 1
        try:
            yield member
        finally:
            member.load -= 1

    def leave_out(self, member: FleetActor, reason: str, incarnation: str = "") -> None:
        """Mark a member as failed, so that its keeper checks it.

        Args:
            incarnation: the start of the actor that failed. If the actor was restarted since, nothing happens.
        """
        if incarnation and incarnation != member.incarnation:
            return
        if member.state is not MemberState.OUT:
            self.stats.num_lost += 1
            self.say(f"{self._kind} {member.index} is lost: {reason}")
        member.state, member.reason = MemberState.OUT, reason
        member.wake.set()
        self.changes.notify()

    def reasons(self) -> str:
        """Return the reasons why members are out, in one line."""
        return "; ".join(
            f"{self._kind} {m.index}: {m.reason}" for m in self.members if m.state is not MemberState.READY
        )

    async def close(self) -> None:
        """Stop the keepers, and the actors that this process started; a second call does nothing."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._keepers = []
        for member in self.members if self.is_ours else ():
            with suppress(RayError):
                ray.kill(member.handle)

    # ---------------------------------------------------------------------------------------------------- private

    async def _keep(self, member: FleetActor) -> None:
        keeper = asyncio.current_task()
        assert keeper is not None
        while not keeper.cancelling():  # a failure at the same moment may have taken the cancellation's place
            try:
                found = await self._ping(member)
                self._meet(member, found)
                self.on_answer(found)
                await self._admit(member, found)
                member.state = MemberState.READY
                self.changes.notify()
            except (
                Exception
            ) as error:  # whatever it is, the actor is of no use like this, and the next try may do better
                self.leave_out(member, first_line(error))
            member.wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.health_interval_s):
                    await member.wake.wait()

    async def _ping(self, member: FleetActor) -> ActorState:
        """Check a member's health; kill it if it was running and does not answer."""
        is_up = member.state is not MemberState.OUT
        timeout_s = self._config.health_timeout_s if is_up else self._config.start_timeout_s
        answer = asyncio.wrap_future(member.handle.ping.remote().future())
        answer.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # else asyncio logs one that is late
        # not asyncio.timeout: it would also end an answer that came while this process was busy training; and in
        # slices, since the clock also runs while this process and the actors are suspended
        for _ in range(_NUM_SLICES):
            await asyncio.wait({answer}, timeout=timeout_s / _NUM_SLICES)
            if answer.done():
                state: ActorState = answer.result()
                return state
        answer.cancel()
        if is_up and self.is_ours:
            self.stats.num_hung += 1
            with suppress(RayError):
                ray.kill(member.handle, no_restart=False)
        raise InfrastructureError(f"no answer for {timeout_s:g} s")

    def _meet(self, member: FleetActor, found: ActorState) -> None:
        self.found[found.incarnation] = found
        if found.incarnation == member.incarnation:
            if member.state is MemberState.OUT:
                member.state = MemberState.UPDATING
            return
        if member.incarnation:
            # it died and was started again between two checks
            self.stats.num_lost += member.state is not MemberState.OUT
            self.stats.num_restarts += 1
            self.say(f"{self._kind} {member.index} was started again")
        member.incarnation, member.state = found.incarnation, MemberState.UPDATING
        self.changes.notify()


def first_line(error: BaseException) -> str:
    """Return the first line of a Ray error, without the traceback of the other process."""
    if isinstance(error, RayTaskError):
        return first_line(cause_of(error))
    text = str(error).strip().partition("\n")[0]
    return text or type(error).__name__


def cause_of(error: RayTaskError) -> AgentGymError:
    """Return the error that an actor raised: agentgym's own unchanged, any other as an ``InfrastructureError``."""
    cause = error.cause
    if isinstance(cause, AgentGymError):
        return cause
    return InfrastructureError(f"{type(cause).__name__}: {cause}")
