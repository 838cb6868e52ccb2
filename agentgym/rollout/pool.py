"""Environments kept for reuse, a bounded number at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from agentgym.env import Env
from agentgym.errors import EnvError, boundary
from agentgym.rollout.actor import MakeActor
from agentgym.rollout.loop import EpisodeLimits
from agentgym.rollout.match import play_task
from agentgym.types import Task, Trajectory, Turn

_PATIENCE_S = 10.0


class Pool(Protocol):
    """Where tasks are played: in environments of this process, or of others."""

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
        """:func:`~agentgym.rollout.match.play_task` in one of the environments.

        Raises:
            InfrastructureError: the environment could not be made, a game not be begun, or the place was lost.
        """
        ...

    async def close(self) -> None:
        """Close all idle environments."""
        ...


class EnvPool:
    """A :class:`Pool` that hands environments out, at most ``num_envs`` at once.

    An environment comes back to the pool only if its episode ended well; after a failure it is closed, so that a retry
    gets a fresh one.
    """

    def __init__(self, make_env: Callable[[], Env], num_envs: int) -> None:
        self._make_env = make_env
        self._free = asyncio.Semaphore(num_envs)
        self._idle: list[Env] = []

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
        """See :meth:`Pool.play`."""
        async with self.lend() as loan:
            played = await play_task(
                loan.env, task, make_actor, limits,
                seed=seed, opponent=opponent, num_retries=num_retries, on_turn=on_turn,
            )  # fmt: skip
            loan.is_spoilt = not is_evidence(played)
        return played

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Loan]:
        """An environment for one episode; set ``loan.is_spoilt`` if it must not be used again."""
        async with self._free:
            if self._idle:
                env = self._idle.pop()
            else:
                with boundary(EnvError, "making the environment"):
                    env = self._make_env()
            loan = Loan(env)
            try:
                yield loan
            except BaseException:
                loan.is_spoilt = True
                raise
            finally:
                if loan.is_spoilt or not await _has_ended(env):
                    await _close(env)
                else:
                    self._idle.append(env)

    async def close(self) -> None:
        """Close all idle environments."""
        while self._idle:
            await _close(self._idle.pop())


class Loan:
    """An environment out of the pool."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.is_spoilt = False


def is_evidence(played: Sequence[Trajectory]) -> bool:
    """Whether no trajectory of a task was spoilt by the infrastructure."""
    return all(trajectory.status.is_evidence for trajectory in played)


async def _has_ended(env: Env) -> bool:
    """Let an environment free what its episode needed; False if that fails, which is no reason to lose the episode."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await env.aend_episode()
    except Exception:
        return False
    return True


async def _close(env: Env) -> None:
    # A spoilt environment may fail to close, too; that is the failure that was already recorded.
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_PATIENCE_S):
            await env.aclose()
