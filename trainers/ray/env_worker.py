"""An env worker: the process in which episodes are played, several at a time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from agentgym.env.env import Env
from agentgym.rollout.in_flight import SampledReport
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.request import RolloutRequest
from agentgym.trainers.ray.actor_state import ActorState
from agentgym.types import Trajectory, Turn

if TYPE_CHECKING:
    from ray import ObjectRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt at a task, in the form that is sent to a worker."""

    key: str
    """Unique key of the attempt."""
    rank: int
    """The trainer's rank that asks for it."""
    request: RolloutRequest
    """The rollout request. Its ``make_agent`` and those of its roles are Ray references, which each worker
    resolves once."""
    make_env: ObjectRef
    """Ray reference to the factory of environments."""


@dataclass(slots=True)
class PlayedEpisode:
    """The trajectories and turns of an attempt; the turns so far if it was cancelled."""

    trajectories: tuple[Trajectory, ...] = ()
    turns: list[Turn] = field(default_factory=list)


class EnvWorker:
    """An actor that plays episodes.

    Args:
        num_envs: largest number of environments of a kind in use at the same time.
        folder: base folder of relative paths.
        environment: environment variables of the run (:func:`~agentgym.trainers.ray.connection.environment_of_run`).
    """

    def __init__(self, num_envs: int, folder: str, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        os.environ.update(environment)
        self._num_envs = num_envs
        self._state = ActorState()
        self._sampled, self._began = dict[int, SampledReport](), time.monotonic()
        self._values: dict[ObjectRef, object] = {}
        self._pools: dict[ObjectRef, EnvPool] = {}
        self._running: dict[str, tuple[asyncio.Task[tuple[Trajectory, ...]], PlayedEpisode]] = {}
        if os.path.isdir(folder):  # a machine without it has environments of packages alone
            os.chdir(folder)

    async def ping(self) -> ActorState:
        """Return the state of the actor, with the turns since its start."""
        span_s = time.monotonic() - self._began
        return replace(self._state, sampled={rank: replace(one, span_s=span_s) for rank, one in self._sampled.items()})

    async def play(self, attempt: Attempt) -> PlayedEpisode:
        """Play an attempt to its end, or until :meth:`cut`.

        Raises:
            InfrastructureError: the environment could not be made, or a game could not start.
        """
        make_env: Callable[[], Env] = await self._fetched(attempt.make_env)
        pool = self._pools.setdefault(attempt.make_env, EnvPool(make_env, self._num_envs))
        played, sent = PlayedEpisode(), attempt.request

        def note(turn: Turn) -> None:
            played.turns.append(turn)
            self._sampled[attempt.rank] = self._sampled.get(attempt.rank, SampledReport()).plus(turn)

        request = replace(
            sent,
            make_agent=await self._fetched(sent.make_agent),
            roles={
                part: replace(one, make_agent=await self._fetched(one.make_agent)) for part, one in sent.roles.items()
            },
            on_turn=note,
        )
        task = asyncio.ensure_future(pool.play(request))
        self._running[attempt.key] = task, played
        try:
            played.trajectories = await task
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
        finally:
            del self._running[attempt.key]
        return played

    async def cut(self, key: str) -> list[Turn]:
        """Cancel an attempt and return its turns so far."""
        if key not in self._running:
            return []
        task, played = self._running[key]
        task.cancel()
        return played.turns

    async def _fetched(self, ref: ObjectRef) -> Any:
        if ref not in self._values:
            self._values[ref] = await ref
        return self._values[ref]
