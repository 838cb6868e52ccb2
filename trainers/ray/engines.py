"""The engines of a run on a cluster, and the transfer of the trainer's weights to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError

from agentgym.engine import EngineHealth
from agentgym.errors import EngineError
from agentgym.trainers.config.cluster import ClusterConfig
from agentgym.trainers.ray.actor_state import ActorState
from agentgym.trainers.ray.engine_client import EngineClient
from agentgym.trainers.ray.fleet import Fleet, FleetActor, FleetStats, MemberState
from agentgym.trainers.ray.weights import pack
from agentgym.trainers.types import CausalLM


@dataclass(frozen=True, slots=True)
class _Target:
    """The weights that every engine must serve."""

    serial: int
    version: int
    weights: ObjectRef
    """A reference to the packed weights."""


class FleetEngine(EngineClient):
    """An :class:`~agentgym.engine.Engine` of a trainer's rank; pickled, it becomes an :class:`EngineClient`.

    Args:
        fleet: the engine actors.
    """

    def __init__(self, fleet: Fleet, config: ClusterConfig, max_context_tokens: int) -> None:
        super().__init__([member.handle for member in fleet.members], max_context_tokens, config.wait_s)
        self._fleet = fleet

    def health(self) -> EngineHealth:
        """Return the load of the engines that answer, as of their last health checks, and the counters of all starts.

        A restarted engine begins its counters at 0. A number is None if an engine does not report it.
        """
        members = self._fleet.members
        reports = {name: one.health for name, one in self._fleet.found.items() if one.health is not None}
        now = [reports[m.incarnation] for m in members if m.state is not MemberState.OUT and m.incarnation in reports]
        out = [member.reason for member in members if member.state is MemberState.OUT]
        return EngineHealth(
            running=sum(report.running for report in now),
            queued=_sum([report.queued for report in now]),
            servers=len(members),
            ready=len(members) - len(out),
            fault=out[0] if out else "",
            cache_use=max((use for report in now if (use := report.cache_use) is not None), default=None),
            preempted=_sum([report.preempted for report in reports.values()]),
            prefix_tokens=_sum([report.prefix_tokens for report in reports.values()]),
            prefix_hits=_sum([report.prefix_hits for report in reports.values()]),
        )

    async def connect(self, say: Callable[[str], None]) -> None:
        """Wait for the first engine; the rank that starts the engines says which are lost later.

        Raises:
            ConfigError: none came up in time.
        """
        if self._fleet.is_ours:
            self._fleet.say = say
        await self._fleet.wait_for_one()

    async def close(self) -> None:
        """Stop the supervision, and end the engines if this rank started them; a second call does nothing."""
        await super().close()
        await self._fleet.close()


class RemoteEngine(FleetEngine):
    """The engine of a rank that plays on actors of the first rank, which sends them their weights."""

    def __init__(self, handles: Sequence[ActorHandle], config: ClusterConfig, *, max_context_tokens: int) -> None:
        super().__init__(Fleet("engine", handles, config, is_ours=False), config, max_context_tokens)
        self._version = 0

    @property
    def policy_version(self) -> int:
        """Version of the weights that the first rank sent last."""
        return self._version

    async def update_weights(self, version: int) -> None:
        """Note the version of the weights that the first rank sends."""
        self._version = version


class RayEngine(FleetEngine):
    """The engine of the rank that starts the actors and sends them their weights.

    Args:
        model: the trainer's model, whose weights :meth:`update_weights` sends.
        update_timeout_s: seconds within which new weights must reach the engines.
        for_vllm: True if the engines are vLLM servers, which prove by checksum that they use the given weights.
    """

    def __init__(
        self,
        handles: Sequence[ActorHandle],
        model: CausalLM,
        config: ClusterConfig,
        *,
        max_context_tokens: int,
        update_timeout_s: float,
        for_vllm: bool = False,
    ) -> None:
        super().__init__(Fleet("engine", handles, config, self._admit), config, max_context_tokens)
        self._model, self._update_timeout_s, self._for_vllm = model, update_timeout_s, for_vllm
        self._target: _Target | None = None

    @property
    def policy_version(self) -> int:
        """Version of the weights sent last."""
        return self._target.version if self._target else 0

    @property
    def server_stats(self) -> FleetStats:
        """Counters since the engine was created; always the same object."""
        return self._fleet.stats

    async def update_weights(self, version: int) -> None:
        """Send the model's current weights, as ``version``, to every engine that answers.

        Other engines receive them when they are back, before they serve.

        Raises:
            EngineError: no engine accepted the weights in time.
        """
        self._fleet.start()
        serial = self._target.serial + 1 if self._target else 1
        self._target = _Target(serial, version, ray.put(pack(self._model, version, for_vllm=self._for_vllm)))
        members = self._fleet.members
        for member in members:
            if member.state is MemberState.READY:
                member.state = MemberState.UPDATING
            member.wake.set()

        def settled() -> bool:
            states = [member.state for member in members]
            return MemberState.READY in states and MemberState.UPDATING not in states

        await self._fleet.changes.until(settled, self._update_timeout_s)
        if not any(member.state is MemberState.READY for member in members):
            raise EngineError(
                f"no engine took the weights of version {version} within {self._update_timeout_s:g} s: "
                + self._fleet.reasons()
            )

    async def _admit(self, member: FleetActor, found: ActorState) -> None:
        """Load the current target weights into a restarted engine; the target may change in the meantime."""
        serial = found.serial
        while self._target is None or serial != self._target.serial:
            if (target := self._target) is None:
                await member.wake.wait()
                member.wake.clear()
                continue
            member.state = MemberState.UPDATING
            sent = member.handle.load.remote(target.weights, target.serial)
            loading = asyncio.wrap_future(sent.future())
            await asyncio.wait({loading}, timeout=self._update_timeout_s)
            if not loading.done():
                ray.kill(member.handle, no_restart=False)  # whatever it holds, it must not serve it
                raise GetTimeoutError(f"it did not take version {target.version} in {self._update_timeout_s:g} s")
            loading.result()
            serial = target.serial


def _sum(values: Sequence[int | None]) -> int | None:
    """Return the sum, or None if there are no values or one is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None
