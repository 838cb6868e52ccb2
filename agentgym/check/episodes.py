"""Episodes for the checks: play them with a policy, replay them from their actions, and compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from agentgym.call_syntax import format_call
from agentgym.canonical import digest
from agentgym.check.outages import retried, retried_async, told_apart
from agentgym.check.policies import Policy, noop_action, random_action
from agentgym.env.env import Env, StepReturn, TypedStep
from agentgym.env.time_limit import time_limit
from agentgym.types import Message, Observation, Task, ToolCall

MAX_TURNS = 100
"""Turns after which a check stops an episode that does not end by itself."""
TOLERANCE = 1e-9
"""Largest difference between rewards that should be equal."""


STEP_TIMEOUT_S: ContextVar[float] = ContextVar("STEP_TIMEOUT_S", default=60.0)
"""Seconds after which a check counts a reset or a step as hung."""

ON_TURN: ContextVar[Callable[[int], None]] = ContextVar("ON_TURN", default=lambda num_turns: None)
"""Called with the number of turns that a check has played since the last call, to show that it goes on."""


def step_limit(what: str) -> AbstractContextManager[None]:
    """Return a context manager that limits the time of one operation of the environment."""
    return time_limit(STEP_TIMEOUT_S.get(), what)


def reward_of(env: Env, task: Task, action: Message) -> float:
    """Return the reward of a task's first turn."""

    def attempt() -> float:
        env.reset(options={"task": task})
        reward = float(env.step(action)[1])
        ON_TURN.get()(1)
        return reward

    return retried(attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckStep:
    """One turn: the key of its state, the action, and everything that the environment returned."""

    state_key: str
    action: Message
    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]
    is_listed: bool = False
    """True if the random policy drew the action from the environment's admissible ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckEpisode:
    """A recorded episode, complete or not."""

    task: Task
    first: Observation
    first_info: dict[str, object]
    steps: tuple[CheckStep, ...]
    last_state_key: str

    @property
    def actions(self) -> tuple[Message, ...]:
        """Actions of all turns."""
        return tuple(step.action for step in self.steps)

    @property
    def state_keys(self) -> tuple[str, ...]:
        """Keys of all states, including the last one: one more than there are steps."""
        return (*(step.state_key for step in self.steps), self.last_state_key)

    @property
    def observations(self) -> tuple[Observation, ...]:
        """First observation and those of all steps."""
        return (self.first, *(step.observation for step in self.steps))

    @property
    def is_over(self) -> bool:
        """True if the episode terminated or was truncated."""
        return bool(self.steps) and (self.steps[-1].terminated or self.steps[-1].truncated)

    @property
    def is_success(self) -> bool:
        """True if the environment reported success."""
        return bool(self.steps) and bool(self.steps[-1].info.get("success", False))

    @property
    def digest(self) -> str:
        """Return a digest of the episode that is the same in every process."""
        turns = [(s.state_key, str(s.action), texts(s.observation), float(s.reward)) for s in self.steps]
        return digest([self.task.id, texts(self.first), turns, self.last_state_key])


def play(
    env: Env,
    policy: Policy,
    task: Task,
    rng: np.random.Generator,
    *,
    max_turns: int = MAX_TURNS,
    seed: int | None = None,
) -> CheckEpisode:
    """Reset to a task and let a policy act until the end or ``max_turns``; again if the infrastructure fails."""
    drawn = rng.bit_generator.state

    def attempt() -> CheckEpisode:
        rng.bit_generator.state = drawn
        with step_limit("reset"):
            first, info = env.reset(seed=seed, options={"task": task})
        return play_on(env, policy, rng, first, info, max_turns=max_turns)

    return told_apart(attempt)


def play_on(
    env: Env,
    policy: Policy,
    rng: np.random.Generator,
    first: Observation,
    first_info: dict[str, object] | None = None,
    *,
    max_turns: int = MAX_TURNS,
) -> CheckEpisode:
    """Let a policy act from the current state on; ``first`` is the last observation."""
    steps: list[CheckStep] = []
    observation = first
    while len(steps) < max_turns and not (steps and (steps[-1].terminated or steps[-1].truncated)):
        with step_limit(f"turn {len(steps) + 1}"):
            key, action = env.state_key(), policy(env, observation, rng)
            is_listed = policy is random_action and bool(env.admissible_actions())
            with _noted(f"in turn {len(steps) + 1}, {_call(action, env)}"):
                returned = env.step(action)
            steps.append(replace(_step(key, action, returned), is_listed=is_listed))
        ON_TURN.get()(1)
        observation = steps[-1].observation
    return _episode(env, first, first_info or {}, steps)


@contextmanager
def _noted(note: str) -> Iterator[None]:
    """Add a note to an exception raised in the ``with`` block."""
    try:
        yield
    except Exception as error:
        error.add_note(note)
        raise


def _call(action: Message, env: Env) -> str:
    """Return an action as a person types it."""
    calls = [format_call(call, env.tools) if isinstance(call, ToolCall) else call.text for call in action.calls]
    return brief("; ".join(calls) or action.text)


async def aplay(env: Env, actions: Sequence[Message], task: Task) -> CheckEpisode:
    """Replay actions like :func:`replay`, but through the asynchronous methods."""
    return await retried_async(partial(_aplay, env, actions, task))


async def _aplay(env: Env, actions: Sequence[Message], task: Task) -> CheckEpisode:
    first, info = await env.areset(options={"task": task})
    steps: list[CheckStep] = []
    for action in actions:
        key = env.state_key()
        steps.append(_step(key, action, await env.astep(action)))
        ON_TURN.get()(1)
        if steps[-1].terminated or steps[-1].truncated:
            break
    return _episode(env, first, info, steps)


def replay(env: Env, actions: Sequence[Message], task: Task, *, seed: int | None = None) -> CheckEpisode:
    """Reset to a task and replay recorded actions."""
    rng = np.random.default_rng(0)

    def attempt() -> CheckEpisode:
        with step_limit("reset"):
            first, info = env.reset(seed=seed, options={"task": task})
        return play_on(env, scripted(actions), rng, first, info, max_turns=len(actions))

    return told_apart(attempt)


def scripted(actions: Sequence[Message]) -> Policy:
    """Return a policy that repeats recorded actions in order, once: :func:`play`, which may begin anew, takes none."""
    remaining: Iterator[Message] = iter(actions)
    return lambda env, observation, rng: next(remaining)


def noop(env: Env, observation: Observation, rng: np.random.Generator) -> Message:
    """Act as :func:`~agentgym.check.policies.noop_action`, with the signature of a policy."""
    return noop_action(env)


def first_difference(one: CheckEpisode, other: CheckEpisode) -> str | None:
    """Return a text about the first difference between two episodes, or None if they are equal."""
    if (found := _differs("first observation", one.first, other.first)) is not None:
        return found
    if (found := _differs("info of reset", one.first_info, other.first_info)) is not None:
        return found
    for number, (a, b) in enumerate(zip(one.steps, other.steps, strict=False), 1):
        for field in ("state_key", "observation", "reward", "terminated", "truncated", "info"):
            if (found := _differs(f"turn {number}, {field}", getattr(a, field), getattr(b, field))) is not None:
                return found
    if len(one.steps) != len(other.steps):
        return f"number of turns: {len(one.steps)} against {len(other.steps)}"
    return _differs("state key at the end", one.last_state_key, other.last_state_key)


def texts(observation: Observation) -> list[list[str]]:
    """Return role and texts of each message of an observation."""
    return [[message.role, message.text] for message in observation]


def brief(value: object, num_chars: int = 100) -> str:
    """Return the value as text, shortened to about ``num_chars`` characters."""
    is_observation = isinstance(value, tuple) and all(isinstance(item, Message) for item in value)
    text = repr([str(message) for message in value]) if is_observation else repr(value)  # type: ignore[attr-defined]
    return text if len(text) <= num_chars else text[:num_chars] + "..."


def _differs(what: str, one: object, other: object) -> str | None:
    if data_equivalence(one, other, exact=True):
        return None
    return f"{what}: {brief(one)} against {brief(other)}"


def _step(key: str, action: Message, returned: StepReturn | TypedStep) -> CheckStep:
    observation, reward, terminated, truncated, info = returned
    return CheckStep(
        state_key=key,
        action=action,
        observation=observation,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        info=info,
    )


def _episode(env: Env, first: Observation, first_info: dict[str, object], steps: list[CheckStep]) -> CheckEpisode:
    return CheckEpisode(
        task=env.task, first=first, first_info=first_info, steps=tuple(steps), last_state_key=env.state_key()
    )
