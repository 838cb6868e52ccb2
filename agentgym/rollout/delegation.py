"""Sub-agents in a rollout: episodes within an episode, played by the same policy in contexts of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from agentgym.env import Env
from agentgym.errors import EngineError, EnvError, EnvTimeoutError
from agentgym.rollout.seeds import derive_seed
from agentgym.types import Segment, Status, Task, Trajectory

PlaySubAgent = Callable[[Env, Task, int], Awaitable[Trajectory]]
"""Plays one episode of a sub-agent's environment, with a seed of the policy's sampling."""
_ERRORS = {Status.TIMEOUT: EnvTimeoutError, Status.ABORTED: EngineError, Status.ENV_ERROR: EnvError}


class Delegation:
    """The sub-agents of one episode, and what is kept of them.

    Args:
        play: plays one.
        seed: of the policy's sampling in the episode that asks.
        step_timeout_s: what a step of that episode may take, sub-agents not counted.
    """

    def __init__(self, play: PlaySubAgent, seed: int, step_timeout_s: float) -> None:
        self._play, self._seed, self._step_timeout_s = play, seed, step_timeout_s
        self._num_invocations = self._num_running = 0
        self.segments: list[Segment] = []
        self.clock: asyncio.Timeout | None = None
        """The running step's, which stands still while a sub-agent plays."""

    async def __call__(self, agent: str, env: Env, task: Task) -> None:
        invocation = self._num_invocations
        self._num_invocations += 1
        seed = derive_seed(self._seed, "sub-agent", invocation)
        self._pause(+1)
        try:
            trajectory = await self._play(env, task, seed)
        finally:
            self._pause(-1)
        self.segments += [replace(segment, agent=agent, invocation=invocation) for segment in trajectory.segments]
        if not trajectory.status.is_evidence:
            raise _ERRORS[trajectory.status](f"sub-agent {agent}: {trajectory.error}")

    def _pause(self, change: int) -> None:
        self._num_running += change
        if self.clock is not None and not self.clock.expired():
            now = asyncio.get_running_loop().time()
            self.clock.reschedule(None if self._num_running else now + self._step_timeout_s)
