"""One episode driven by TRL's tool loop: a reset, then one tool call after another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from agentgym.call_syntax import format_call
from agentgym.env.env import Env
from agentgym.errors import ClosedError, EnvError, EnvTimeoutError, InfrastructureError, ToolError, UsageError, boundary
from agentgym.rollout.request import EpisodeLimits
from agentgym.trainers.distributed.devices import on_this_device
from agentgym.types import Message, Observation, Status, ToolCall

CLOSE_TIMEOUT_S = 10.0
UNAVAILABLE = "The environment is not available any more."
OVER = "The episode has ended; this call was not run."


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSettings:
    """Settings for playing one environment of TRL's pool."""

    make_env: Callable[[], Env]
    limits: EpisodeLimits = EpisodeLimits()
    max_retries: int = 2
    """Number of retries of a reset, each on a new environment. After the first token there are no retries."""
    max_failure_rate: float = 0.5
    """Share of failed episodes in a batch above which the run stops."""


class TrlPlayer:
    """A player of one episode at a time, with its status and reward.

    An infrastructure failure ends the episode without a reward: :attr:`reward` is None. TRL continues to call tools;
    every later call returns :data:`UNAVAILABLE`.
    """

    def __init__(self, settings: EpisodeSettings, loop: EventLoopThread) -> None:
        self._settings, self._loop = settings, loop
        self._env: Env | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.status: Status | None = None
        """None while the episode runs; it ends when the policy stops calling tools."""
        self.error: str | None = None
        self.success = False
        self._return = 0.0

    @property
    def is_lost(self) -> bool:
        """True if the infrastructure failed."""
        return self.status is not None and not self.status.is_evidence

    @property
    def reward(self) -> float | None:
        """The sum of the turn rewards so far; None if the infrastructure failed."""
        return None if self.is_lost else self._return

    def begin(self, split: str, index: int, task_id: str) -> str:
        """Reset to a task and return its first observation as text.

        Raises:
            UsageError: the task does not exist, or differs from the one named in the row.
        """
        self._begin_anew()
        for _ in range(self._settings.max_retries + 1):
            try:
                return self._text(self._loop.run(self._reset(split, index, task_id)))
            except InfrastructureError as error:
                failure = error
                self.close()
        return self._lost(failure)

    def call(self, name: str, arguments: Mapping[str, object]) -> str:
        """Call a tool as one turn, and return the environment's reply as text."""
        if self.is_lost:
            return UNAVAILABLE
        if self.status is not None:
            return OVER
        try:
            return self._text(self._loop.run(self._step(name, arguments)))
        except ToolError as error:  # the policy's fault, which ends the episode
            self.status = Status.POLICY_ERROR
            return f"Error: {error}"
        except InfrastructureError as error:
            self.close()
            return self._lost(error)

    def close(self) -> None:
        """Close the environment; the next episode creates a new one."""
        env, self._env = self._env, None
        if env is not None:
            with suppress(Exception):  # it failed to close, too: the failure that counts is recorded
                self._loop.run(env.aclose(), timeout_s=CLOSE_TIMEOUT_S)

    async def _reset(self, split: str, index: int, task_id: str) -> Observation:
        limits = self._settings.limits
        with boundary(EnvError, "making or resetting the environment"):
            if self._env is None:
                self._env = self._settings.make_env()
            async with asyncio.timeout(limits.reset_timeout_s):
                observation, _ = await self._env.areset(options={"task": index, "split": split})
        if self._env.task.id != task_id:
            raise UsageError(
                f"row {index} of split {split!r} says task {task_id!r}, and the environment's is "
                f"{self._env.task.id!r}; make the dataset with the arguments that the environments are made with"
            )
        return observation

    async def _step(self, name: str, arguments: Mapping[str, object]) -> Observation:
        env = self._env
        assert env is not None, "TRL resets an environment before it calls a tool"
        call = ToolCall(name, dict(arguments), "0")
        with boundary(EnvError, f"{env.env_id}: {name}"):
            action = Message("assistant", format_call(call, env.tools), (call,))
            async with asyncio.timeout(self._settings.limits.of(env).step_timeout_s):
                replies, reward, terminated, truncated, info = await env.astep(action)
        if "played" in info:
            raise UsageError(
                f"{env.env_id} does something else in place of an action, which TRL's conversation cannot show: "
                "train with agentgym's own trainer"
            )
        self._return += reward
        if terminated or truncated:
            self.status = Status.COMPLETED if terminated else Status.TRUNCATED_TURNS
            self.success = bool(info["success"])
        return replies

    def _lost(self, error: InfrastructureError) -> str:
        self.status = Status.TIMEOUT if isinstance(error, EnvTimeoutError) else Status.ENV_ERROR
        self.error = str(error)
        return UNAVAILABLE

    @staticmethod
    def _text(observation: Observation) -> str:
        return "\n".join(message.text for message in observation)


# ------------- an event loop in a separate thread, so that TRL's synchronous trainer can use asynchronous environments

Result = TypeVar("Result")


class EventLoopThread:
    """An event loop in a thread, which lives as long as its environments: their connections belong to the loop.

    A separate thread also works if the caller's thread already runs a loop, as in a notebook.

    Example:
        >>> loop = EventLoopThread("example")
        >>> loop.run(asyncio.sleep(0, result=3))
        3
        >>> loop.stop()
    """

    def __init__(self, name: str) -> None:
        self.is_stopped = False
        self._loop = asyncio.new_event_loop()
        threading.Thread(
            target=on_this_device(self._loop.run_forever), name=f"event loop of {name}", daemon=True
        ).start()

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        """Run a coroutine and return its result; raise its errors. It is cancelled if the caller is interrupted.

        Raises:
            TimeoutError: it took longer than ``timeout_s``, or something in the loop blocks it.
            ClosedError: after :meth:`stop`.
        """
        if self.is_stopped:
            work.close()
            raise ClosedError("the event loop was used after it was stopped")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Stop the thread; coroutines that still run are abandoned."""
        self.is_stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
