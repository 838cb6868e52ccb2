"""Fault injection: a wrapper that makes any environment crash, hang or slow down at random.

It tests *other* code against failing environments: the rest of the group continues, failures give no reward, and
training sees the same data as without faults.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from enum import StrEnum
from typing import Any

import numpy as np

from agentgym.env.actions import Action
from agentgym.env.env import Env, StepReturn, TypedStep
from agentgym.errors import ConfigError
from agentgym.types import Observation

_attempts_in_process: Counter[str] = Counter()


class Fault(StrEnum):
    """Kinds of faults of a reset or a step."""

    CRASH = "crash"
    HANG = "hang"
    SLOW = "slow"


def _delegated(name: str) -> object:
    """Return a property that reads the attribute of that name from the wrapped environment."""
    return property(lambda chaos: getattr(chaos.env, name), lambda chaos, value: setattr(chaos.env, name, value))


class Chaos(Env):
    """A wrapper that injects faults into an environment and otherwise behaves like it.

    A crash raises ``RuntimeError``. A hang never returns from ``areset`` and ``astep`` (cancelling works); ``reset``
    and ``step``, which cannot be cancelled, raise ``TimeoutError`` instead. A fault of a reset occurs after the wrapped
    environment's reset; a fault of a step occurs before its step.

    Faults come from a separate generator, seeded by ``(seed, task, attempt, turn)``. The wrapped environment's
    randomness is therefore unchanged, and a second attempt at a task gets other faults than the first.

    Args:
        env: the environment to wrap; closing the wrapper closes it.
        crash, hang, slow: probability of each fault, per reset and per step; their sum is at most 1.
        slow_s: seconds by which a slow reset or step takes longer.
        seed: seed of the faults.
        attempts: counter of attempts per task. By default all instances in the process share one. Pass one
            ``Counter()`` to all environments of a test to make its faults independent of earlier tests.

    Example:
        >>> class Echo(Env):
        ...     def start(self, task):
        ...         return "hello"
        >>> Chaos(Echo(), crash=1.0).reset(seed=0)
        Traceback (most recent call last):
        RuntimeError: Echo: crash by plan (task train-850624, attempt 1, turn 0)
    """

    def __init__(
        self,
        env: Env,
        *,
        crash: float = 0.0,
        hang: float = 0.0,
        slow: float = 0.0,
        slow_s: float = 0.05,
        seed: int = 0,
        attempts: Counter[str] | None = None,
    ) -> None:
        if min(crash, hang, slow) < 0 or crash + hang + slow > 1:
            raise ConfigError(
                f"crash, hang and slow are probabilities whose sum is at most 1; got {crash}, {hang}, {slow}"
            )
        self.env = env
        super().__init__(render_mode=env.render_mode)
        self.metadata = env.metadata
        self.spec = env.spec
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.num_faults: Counter[Fault] = Counter()
        """Number of faults so far, by kind."""
        self._crash, self._hang, self._slow, self._slow_s = crash, hang, slow, slow_s
        self._fault_seed = seed
        self._attempts = _attempts_in_process if attempts is None else attempts
        self._attempt = 0

    # --------------------------------------------------------------------------------------------- with faults

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        begun = self.env.reset(seed=seed, options=options)
        self._count_attempt()
        self._strike()
        return begun

    async def areset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Observation, dict[str, object]]:
        begun = await self.env.areset(seed=seed, options=options)
        self._count_attempt()
        await self._astrike()
        return begun

    def step(self, action: Action) -> StepReturn:
        self._strike()
        return self.env.step(action)

    async def astep(self, action: Action) -> TypedStep:
        await self._astrike()
        return await self.env.astep(action)

    def __getattr__(self, name: str) -> object:
        if name == "env" or name.startswith("__"):  # ``env`` is not set yet, or ``copy`` looks for a method
            raise AttributeError(name)
        return getattr(self.env, name)

    # --------------------------------------------------------------------------------------------------- private

    def _count_attempt(self) -> None:
        key = f"{self._fault_seed} {self.env.env_id} {self.env.task.content_hash}"
        self._attempts[key] += 1
        self._attempt = self._attempts[key]

    def _draw(self) -> Fault | None:
        if self._attempt == 0 or not self._crash + self._hang + self._slow:
            return None  # the wrapped environment itself rejects a step before the first reset
        task_number = int(self.env.task.content_hash, 16)
        rng = np.random.default_rng((self._fault_seed, task_number, self._attempt, self.env.turn))
        drawn = float(rng.random())
        for fault, probability in ((Fault.CRASH, self._crash), (Fault.HANG, self._hang), (Fault.SLOW, self._slow)):
            if drawn < probability:
                self.num_faults[fault] += 1
                return fault
            drawn -= probability
        return None

    def _planned(self, fault: Fault) -> str:
        where = f"task {self.env.task.id}, attempt {self._attempt}, turn {self.env.turn}"
        return f"{self.env.env_id}: {fault} by plan ({where})"

    def _strike(self) -> None:
        match self._draw():
            case Fault.CRASH:
                raise RuntimeError(self._planned(Fault.CRASH))
            case Fault.HANG:
                raise TimeoutError(self._planned(Fault.HANG))
            case Fault.SLOW:
                time.sleep(self._slow_s)

    async def _astrike(self) -> None:
        match self._draw():
            case Fault.CRASH:
                raise RuntimeError(self._planned(Fault.CRASH))
            case Fault.HANG:
                await asyncio.Event().wait()
            case Fault.SLOW:
                await asyncio.sleep(self._slow_s)


DELEGATED = (
    *("np_random", "_np_random", "env_id", "task", "turn", "max_turns", "episode", "tools", "takes_words", "tasks"),
    *("state_key", "oracle", "cheats", "admissible_actions", "parse_action", "dump_state", "load_state", "snapshot"),
    *("restore", "render", "end_episode", "aend_episode", "close", "aclose"),
)
"""Attributes of the wrapped environment that the wrapper exposes; Gymnasium's checker reads ``_np_random``."""
for _name in DELEGATED:
    setattr(Chaos, _name, _delegated(_name))
