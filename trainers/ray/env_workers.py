"""Env workers as a pool: tasks are played on the cluster, whole episodes at a time."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from agentgym.env import Env
from agentgym.errors import EnvError
from agentgym.rollout.actor import MakeActor
from agentgym.rollout.loop import EpisodeLimits
from agentgym.trainers.ray.env_worker import Attempt, Played
from agentgym.trainers.ray.fleet import Fleet, Member, cause_of, first_line
from agentgym.types import Task, Trajectory, Turn

_CUT_TIMEOUT_S = 10.0


class Shared:
    """References to values that every worker needs, made once for each."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Any, Any]] = {}

    def ref(self, value: Any) -> Any:
        """The reference of a value, which is kept as long as this."""
        if id(value) not in self._kept:
            self._kept[id(value)] = value, ray.put(value)
        return self._kept[id(value)][1]


class RayPool:
    """A :class:`~agentgym.rollout.pool.Pool` whose environments are in env workers.

    A worker plays an episode to its end and sends back what it was; only the tasks and the trajectories cross. What a
    lost worker was playing raises :class:`~agentgym.errors.EnvError`, and whoever asked plays it again.

    Args:
        workers: stay open when this is closed, since several pools share them.
        make_env, and the actors of :meth:`play`: are sent to the workers.
    """

    def __init__(self, workers: Fleet, make_env: Callable[[], Env]) -> None:
        self._workers, self._make_env = workers, make_env
        self._shared = Shared()

    async def play(
        self,
        task: Task,
        make_actor: MakeActor,
        limits: EpisodeLimits,
        *,
        seed: int,
        opponent: MakeActor | None = None,
        num_retries: int = 0,
        on_turn: Callable[[Turn], None] = lambda turn: None,
    ) -> tuple[Trajectory, ...]:
        """See :meth:`~agentgym.rollout.pool.Pool.play`; the turns are told when the episode is over."""
        attempt = Attempt(
            key=uuid.uuid4().hex,
            task=task,
            limits=limits,
            seed=seed,
            num_retries=num_retries,
            make_env=self._shared.ref(self._make_env),
            make_actor=self._shared.ref(make_actor),
            opponent=None if opponent is None else self._shared.ref(opponent),
        )
        async with self._workers.lend() as worker:
            played = await self._play_on(worker, attempt, on_turn)
        for turn in played.turns:
            on_turn(turn)
        return played.trajectories

    async def close(self) -> None:
        """The workers stay."""

    async def _play_on(self, worker: Member, attempt: Attempt, on_turn: Callable[[Turn], None]) -> Played:
        incarnation = worker.incarnation
        try:
            played: Played = await worker.handle.play.remote(attempt)
            return played
        except asyncio.CancelledError:
            for turn in await _cut(worker, attempt):
                on_turn(turn)
            raise
        except RayTaskError as error:
            raise cause_of(error) from None
        except RayError as error:
            self._workers.leave_out(worker, first_line(error), incarnation)
            raise EnvError(f"env worker {worker.index} was lost in the middle of an episode") from None


async def _cut(worker: Member, attempt: Attempt) -> list[Turn]:
    """Stop an attempt that nobody needs any more; the turns it had got to, where the worker can say."""
    with suppress(RayError, TimeoutError):
        turns: list[Turn] = await asyncio.wait_for(worker.handle.cut.remote(attempt.key).as_future(), _CUT_TIMEOUT_S)
        return turns
    return []


def share_of(num_envs: int, num_workers: int) -> int:
    """Environments that each worker may hold.

    Example:
        >>> share_of(64, 3)
        22
    """
    return math.ceil(num_envs / num_workers)
