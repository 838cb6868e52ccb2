"""An env worker: the process in which episodes are played, several at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentgym.env import Env
from agentgym.rollout.actor import MakeActor
from agentgym.rollout.loop import EpisodeLimits
from agentgym.rollout.pool import EnvPool
from agentgym.trainers.ray.actor_state import ActorState
from agentgym.types import Task, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at a task, as it is sent to a worker."""

    key: str
    """Of this attempt alone."""
    task: Task
    limits: EpisodeLimits
    seed: int
    num_retries: int
    make_env: Any
    """A reference to what makes the environment: fetched once by each worker. Likewise the next two."""
    make_actor: Any
    opponent: Any = None


@dataclass(slots=True)
class Played:
    """What became of an attempt; its turns up to then if it was cut."""

    trajectories: tuple[Trajectory, ...] = ()
    turns: list[Turn] = field(default_factory=list)


class EnvWorker:
    """Plays attempts; Ray makes an actor of it.

    Args:
        num_envs: environments of a kind that are in use at a time.
        folder: where relative paths begin.
    """

    def __init__(self, num_envs: int, folder: str) -> None:
        self._num_envs = num_envs
        self._state = ActorState()
        self._values: dict[Any, Any] = {}
        self._pools: dict[Any, EnvPool] = {}
        self._running: dict[str, tuple[asyncio.Task[tuple[Trajectory, ...]], Played]] = {}
        if os.path.isdir(folder):  # a machine without it has environments of packages alone
            os.chdir(folder)

    async def ping(self) -> ActorState:
        """Who answers."""
        return self._state

    async def play(self, attempt: Attempt) -> Played:
        """Play an attempt to its end, or until :meth:`cut`.

        Raises:
            InfrastructureError: the environment could not be made, or a game not be begun.
        """
        make_env: Callable[[], Env] = await self._fetched(attempt.make_env)
        make_actor: MakeActor = await self._fetched(attempt.make_actor)
        opponent: MakeActor | None = None if attempt.opponent is None else await self._fetched(attempt.opponent)
        pool = self._pools.setdefault(attempt.make_env, EnvPool(make_env, self._num_envs))
        played = Played()
        playing = pool.play(
            attempt.task, make_actor, attempt.limits,
            seed=attempt.seed, opponent=opponent, num_retries=attempt.num_retries, on_turn=played.turns.append,
        )  # fmt: skip
        task = asyncio.ensure_future(playing)
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
        """Stop an attempt; the turns it had got to."""
        if key not in self._running:
            return []
        task, played = self._running[key]
        task.cancel()
        return played.turns

    async def _fetched(self, ref: Any) -> Any:
        if ref not in self._values:
            self._values[ref] = await ref
        return self._values[ref]
