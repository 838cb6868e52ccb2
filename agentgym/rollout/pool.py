"""Pools of a limited number of environments that are reused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from agentgym.env.env import Env
from agentgym.errors import EnvError, boundary
from agentgym.rollout.match import play_task
from agentgym.rollout.request import RolloutRequest
from agentgym.types import Trajectory

_PATIENCE_S = 10.0


class Pool(Protocol):
    """A pool of environments in this process or in others."""

    async def play(self, request: RolloutRequest) -> tuple[Trajectory, ...]:
        """Run a task with :func:`~agentgym.rollout.match.play_task` in one of the environments.

        Raises:
            InfrastructureError: the environment could not be made, or a worker died.
        """
        ...

    async def close(self) -> None:
        """Close all idle environments."""
        ...


class EnvPool:
    """A :class:`Pool` that lends at most ``num_envs`` environments at a time.

    An environment is reused only after an episode that did not fail. After a failure it is closed, and a retry gets a
    fresh one.
    """

    def __init__(self, make_env: Callable[[], Env], num_envs: int) -> None:
        self._make_env = make_env
        self._free = asyncio.Semaphore(num_envs)
        self._idle: list[Env] = []

    async def play(self, request: RolloutRequest) -> tuple[Trajectory, ...]:
        """Run a task in a lent environment; see :meth:`Pool.play`."""
        async with self.lend() as loan:
            played = await play_task(loan.env, request)
            loan.has_failed = not is_evidence(played)
        return played

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Loan]:
        """Lend an environment for one episode. Set ``loan.has_failed`` if it must not be used again."""
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
                loan.has_failed = True
                raise
            finally:
                if loan.has_failed or not await _has_ended(env):
                    await _close(env)
                else:
                    self._idle.append(env)

    async def close(self) -> None:
        """Close all idle environments."""
        while self._idle:
            await _close(self._idle.pop())


class Loan:
    """An environment that is lent from the pool."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.has_failed = False


def is_evidence(played: Sequence[Trajectory]) -> bool:
    """Return True if the infrastructure failed in no trajectory of a task; an episode may be stopped."""
    return all(trajectory.status.is_evidence or trajectory.is_stopped for trajectory in played)


async def _has_ended(env: Env) -> bool:
    """Let an environment free its episode's resources. Return False if that fails; the episode stays valid."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await env.aend_episode()
    except Exception:
        return False
    return True


async def _close(env: Env) -> None:
    # A failed environment may also fail to close. Its first failure is already recorded.
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_PATIENCE_S):
            await env.aclose()
