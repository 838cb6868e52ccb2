"""The run's engines on a cluster: who brings the trainer's weights to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError

from agentgym.errors import EngineError
from agentgym.trainers.ray.actor_state import ActorState
from agentgym.trainers.ray.config import ClusterConfig
from agentgym.trainers.ray.engine_client import EngineClient
from agentgym.trainers.ray.fleet import Fleet, FleetStats, Member, State
from agentgym.trainers.ray.weights import pack
from agentgym.trainers.types import CausalLM


@dataclass(frozen=True, slots=True)
class _Target:
    """What every engine is to serve."""

    serial: int
    version: int
    weights: ObjectRef
    """A reference to the packed weights."""


class RayEngine(EngineClient):
    """The trainer's :class:`~agentgym.engine.Engine`; sent to another process it is an :class:`EngineClient`.

    Args:
        model: the trainer's, whose weights :meth:`update_weights` takes.
        update_timeout_s: longest time new weights may take, from the first engine to the last.
        for_vllm: the engines are vLLM servers, which prove that they compute with what they were given.
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
        super().__init__(handles, max_context_tokens, config.wait_s)
        self._model, self._update_timeout_s, self._for_vllm = model, update_timeout_s, for_vllm
        self._fleet = Fleet("engine", handles, config, self._admit)
        self._target: _Target | None = None

    @property
    def policy_version(self) -> int:
        """Version of the weights that were sent last."""
        return self._target.version if self._target else 0

    @property
    def server_stats(self) -> FleetStats:
        """Counters since the engine was made; the same object every time."""
        return self._fleet.stats

    async def connect(self, say: Callable[[str], None]) -> None:
        """Wait for the first engine.

        Raises:
            ConfigError: none came up in time.
        """
        self._fleet.say = say
        await self._fleet.wait_for_one()

    async def update_weights(self, version: int) -> None:
        """Bring the model's current weights, as ``version``, to every engine that answers; the others get them when
        they come back, before they serve.

        Raises:
            EngineError: not one engine took them in time.
        """
        self._fleet.start()
        serial = self._target.serial + 1 if self._target else 1
        self._target = _Target(serial, version, ray.put(pack(self._model, version, for_vllm=self._for_vllm)))
        members = self._fleet.members
        for member in members:
            if member.state is State.READY:
                member.state = State.UPDATING
            member.wake.set()

        def settled() -> bool:
            states = [member.state for member in members]
            return State.READY in states and State.UPDATING not in states

        await self._fleet.changes.until(settled, self._update_timeout_s)
        if not any(member.state is State.READY for member in members):
            raise EngineError(
                f"no engine took the weights of version {version} within {self._update_timeout_s:g} s: "
                + self._fleet.reasons()
            )

    async def close(self) -> None:
        """End the engines; a second call does nothing."""
        await super().close()
        await self._fleet.close()

    async def _admit(self, member: Member, found: ActorState) -> None:
        """Bring it to the weights that all are to serve, which may change meanwhile."""
        serial = found.serial
        while self._target is None or serial != self._target.serial:
            if (target := self._target) is None:
                await member.wake.wait()
                member.wake.clear()
                continue
            member.state = State.UPDATING
            loading = member.handle.load.remote(target.weights, target.serial).as_future()
            await asyncio.wait({loading}, timeout=self._update_timeout_s)
            if not loading.done():
                ray.kill(member.handle, no_restart=False)  # whatever it holds, it must not serve it
                raise GetTimeoutError(f"it did not take version {target.version} in {self._update_timeout_s:g} s")
            loading.result()
            serial = target.serial
