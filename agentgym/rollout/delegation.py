"""Sub-agents: episodes within an episode with contexts of their own, in which the policy or another role acts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from agentgym.env.env import Env
from agentgym.errors import EngineError, EnvError, EnvTimeoutError
from agentgym.rollout.request import RolloutRequest, ignore_turn
from agentgym.rollout.roles import part_name
from agentgym.rollout.seeds import derive_seed
from agentgym.types import Segment, Status, Task, Trajectory

_ERRORS = {Status.TIMEOUT: EnvTimeoutError, Status.ABORTED: EngineError, Status.ENV_ERROR: EnvError}


class Delegation:
    """The sub-agents of one episode, and their segments.

    Args:
        play: runs the episode of one sub-agent (:func:`~agentgym.rollout.loop.run_episode`).
        request: request of the calling episode.
    """

    def __init__(self, play: Callable[[Env, RolloutRequest], Awaitable[Trajectory]], request: RolloutRequest) -> None:
        self._play = play
        self._request = replace(request, num_retries=0, num_hints=0, advice="", on_turn=ignore_turn)
        self._num_invocations = self._num_running = 0
        self.segments: list[Segment] = []
        """Context windows of the policy and of trained roles."""
        self.frozen_segments: list[Segment] = []
        """Those of roles without training."""
        self.clock: asyncio.Timeout | None = None
        """Time-out of the running step, which is paused while a sub-agent runs."""
        self.asked_at = -1
        """Index of the turn whose step is running."""

    async def __call__(self, agent: str, env: Env, task: Task) -> None:
        invocation, asked_at = self._num_invocations, self.asked_at
        self._num_invocations += 1
        seed = derive_seed(self._request.seed, "sub-agent", invocation)
        part = self._request.roles.get(part_name(agent))
        make_agent = self._request.make_agent if part is None else part.make_agent
        self._pause(+1)
        try:
            trajectory = await self._play(env, replace(self._request, task=task, seed=seed, make_agent=make_agent))
        finally:
            self._pause(-1)
        role, kept = "", self.segments
        if part is not None:
            role, kept = part.role, self.segments if part.is_trained else self.frozen_segments
        kept += [
            replace(segment, agent=agent, invocation=invocation, asked_at=asked_at, role=role)
            for segment in trajectory.segments
        ]
        if not trajectory.status.is_evidence:
            failure = _ERRORS[trajectory.status](f"sub-agent {agent}: {trajectory.error}")
            failure.failed_part = trajectory.failed_part
            raise failure

    def _pause(self, change: int) -> None:
        self._num_running += change
        if self.clock is not None and not self.clock.expired():
            now = asyncio.get_running_loop().time()
            step_timeout_s = self._request.limits.step_timeout_s
            self.clock.reschedule(None if self._num_running else now + step_timeout_s)
