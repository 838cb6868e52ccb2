"""A pool of env workers, which play whole episodes on the cluster."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import ray
from ray import ObjectRef
from ray.exceptions import RayError, RayTaskError

from agentgym.env.env import Env
from agentgym.errors import EnvError
from agentgym.rollout.request import RolloutRequest, ignore_turn
from agentgym.trainers.ray.env_worker import Attempt, PlayedEpisode
from agentgym.trainers.ray.fleet import Fleet, FleetActor, cause_of, first_line
from agentgym.types import Trajectory, Turn

_CUT_TIMEOUT_S = 10.0


class SharedReferences:
    """References to values that every worker needs, one per value."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[object, ObjectRef]] = {}

    def ref(self, value: object) -> ObjectRef:
        """Return the Ray reference of a value; it lives as long as this object."""
        if id(value) not in self._kept:
            self._kept[id(value)] = value, ray.put(value)
        return self._kept[id(value)][1]


class RayPool:
    """A :class:`~agentgym.rollout.pool.Pool` whose environments run in env workers.

    A worker plays an episode to its end. Only tasks and trajectories are sent. If a worker dies, its episodes raise
    :class:`~agentgym.errors.EnvError`, and the caller plays them again.

    Args:
        workers: the env workers. They stay open when the pool is closed, because several pools share them.
        make_env: factory of environments, which must be picklable, as the agents of requests.
        rank: the trainer's rank that plays.
    """

    def __init__(self, workers: Fleet, make_env: Callable[[], Env], rank: int = 0) -> None:
        self._workers, self._make_env, self._rank = workers, make_env, rank
        self._shared = SharedReferences()

    async def play(self, request: RolloutRequest) -> tuple[Trajectory, ...]:
        """See :meth:`~agentgym.rollout.pool.Pool.play`; turns are reported when the episode is over."""
        sent = replace(
            request,
            make_agent=self._shared.ref(request.make_agent),
            roles={
                part: replace(one, make_agent=self._shared.ref(one.make_agent)) for part, one in request.roles.items()
            },
            on_turn=ignore_turn,  # both stay in this process
            on_snapshot=None,
        )
        make_env = self._shared.ref(self._make_env)
        attempt = Attempt(key=uuid.uuid4().hex, rank=self._rank, request=sent, make_env=make_env)
        async with self._workers.lend() as worker:
            played = await self._play_on(worker, attempt, request.on_turn)
        for turn in played.turns:
            request.on_turn(turn)
        return played.trajectories

    async def close(self) -> None:
        """Do nothing: the workers stay."""

    async def _play_on(self, worker: FleetActor, attempt: Attempt, on_turn: Callable[[Turn], None]) -> PlayedEpisode:
        incarnation = worker.incarnation
        try:
            played: PlayedEpisode = await worker.handle.play.remote(attempt)
            return played
        except asyncio.CancelledError:
            for turn in await _cut(worker, attempt):
                on_turn(turn)
            raise
        except RayTaskError as error:
            raise cause_of(error) from None
        except RayError as error:
            self._workers.leave_out(worker, first_line(error), incarnation)
            raise EnvError(f"env worker {worker.index} died during an episode") from None


async def _cut(worker: FleetActor, attempt: Attempt) -> list[Turn]:
    """Cancel an attempt that is no longer needed; return its turns so far if the worker answers."""
    with suppress(RayError):
        cut = asyncio.wrap_future(worker.handle.cut.remote(attempt.key).future())
        if (await asyncio.wait({cut}, timeout=_CUT_TIMEOUT_S))[0]:
            turns: list[Turn] = cut.result()
            return turns
    return []


def share_of(num_envs: int, num_workers: int) -> int:
    """Return the largest number of environments per worker.

    Example:
        >>> share_of(64, 3)
        22
    """
    return math.ceil(num_envs / num_workers)
