"""Resets and steps of an environment within their time limits, and checks of what it returns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from agentgym.canonical import encodable
from agentgym.env.env import Env, StepInfo, TypedStep
from agentgym.env.observations import as_observation
from agentgym.env.rewards import require_finite, role_of
from agentgym.env.time_limit import Limited
from agentgym.errors import (
    EnvError,
    HungError,
    InfrastructureError,
    PolicyFaultError,
    PromptTooLongError,
    ToolError,
    boundary,
    contained_exit,
)
from agentgym.rollout.delegation import Delegation
from agentgym.rollout.request import EpisodeLimits
from agentgym.types import Message, Observation, RewardPart, Status, Task, Turn

T = TypeVar("T")
PASSING = (InfrastructureError, ToolError, PolicyFaultError, PromptTooLongError)
"""Errors that keep their class. Any other error counts as a failed environment. That includes a :class:`UsageError` in
the middle of an episode: only an error of a reset may ask the user to correct something."""
_REFUSED: StepInfo = {"reward_parts": (), "is_valid": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A turn with the environment's reply, and the episode's end if it has ended."""

    turn: Turn
    ended: Status | None = None
    success: bool | None = None
    error: str | None = None


async def reset_env(env: Env, task: Task, limits: EpisodeLimits) -> Observation:
    """Reset an environment to a task, within its time limit, and return the first observation."""
    with boundary(EnvError, f"{env.env_id} reset"):
        async with asyncio.timeout(limits.reset_timeout_s):
            begun = env.areset(seed=task.seed, options={"task": task})
            observation, _ = await limited(env, begun, limits.reset_timeout_s, "reset")
        return as_observation(observation)


async def step_env(env: Env, turn: Turn, limits: EpisodeLimits, delegation: Delegation | None) -> Outcome:
    """Step an environment by a turn, within its time limit, and return the turn with the reply."""
    started = time.perf_counter()
    replies: Observation = ()
    info = _REFUSED
    ended: Status | None = None
    refusal: str | None = None
    try:
        with boundary(EnvError, f"{env.env_id} turn {turn.index + 1}", PASSING):
            async with asyncio.timeout(limits.step_timeout_s) as clock:
                if delegation is not None:
                    delegation.clock, delegation.asked_at = clock, turn.index
                taken = env.astep(turn.action)
                stepped = await limited(env, taken, limits.step_timeout_s, f"turn {turn.index + 1}")
            replies, _, terminated, truncated, info = checked_step(stepped, f"{env.env_id} turn {turn.index + 1}")
        ended = Status.COMPLETED if terminated else Status.TRUNCATED_TURNS if truncated else None
    except ToolError as error:  # the environment ends the episode because of a mistake of the policy
        refusal, ended = str(error), Status.POLICY_ERROR
    turn = replace(
        turn,
        played=info.get("played"),
        replies=replies,
        reward_parts=info["reward_parts"],
        is_valid=info["is_valid"],
        is_void=_is_void(turn.action, env),
        latency=replace(turn.latency, env_s=time.perf_counter() - started),
    )
    return Outcome(turn=turn, ended=ended, success=info.get("success", False) if ended else None, error=refusal)


async def limited(env: Env, work: Awaitable[T], limit_s: float, what: str) -> T:
    """Await work of an environment that must not block the event loop.

    If an environment hangs in the loop, later steps of its class run in threads, where hangs do not block others.
    """
    limited = Limited(work, limit_s, f"{env.env_id} {what}")
    try:
        with contained_exit():
            return await limited
    except (HungError, asyncio.CancelledError):
        if limited.hung is None:
            raise
        type(env).is_blocking = True
        # even if asyncio's limit has passed meanwhile, since its error cannot name the line
        raise limited.hung from None


def _is_void(action: Message, env: Env) -> bool:
    """Return True for a turn that neither calls a tool nor gives an answer."""
    if action.calls:
        return False
    return not action.text.strip() or (bool(env.tools) and not env.takes_words)


def state_key_of(env: Env) -> str:
    """Return the environment's state key.

    Raises:
        EnvError: computing the key failed.
    """
    with boundary(EnvError, f"{env.env_id} state_key", PASSING), contained_exit():
        return checked_key(env.state_key())


def final_state_key(env: Env, status: Status) -> str | None:
    """Return the key of the state in which an episode ended, None if it failed or there is no key any more.

    The episode is complete without it, so an environment that cannot tell does not fail.
    """
    if not status.is_evidence:
        return None
    try:
        return state_key_of(env)
    except InfrastructureError:
        return None


# -------------------------------- checks and conversions of an environment's return values for credit and records
# Environments may be faulty or hostile: a numpy number, an unhashable key or a message of another type would otherwise
# fail much later, and end the run instead of one episode.


def checked_step(stepped: TypedStep, where: str) -> TypedStep:
    """Return a step with plain types.

    Raises:
        EnvError: a reward part is not finite, or too large; the message begins with ``where``.
        KeyError, TypeError, ValueError: the step has another shape.
    """
    said, reward, terminated, truncated, info = stepped
    return as_observation(said), float(reward), bool(terminated), bool(truncated), _checked_info(info, where)


def checked_key(state_key: object) -> str:
    """Return a state's key.

    Raises:
        TypeError: it is not text.
    """
    if not isinstance(state_key, str):
        raise TypeError(f"state_key() returns text, got {type(state_key).__name__}; use canonical(state)")
    return encodable(state_key)


def _checked_info(info: Mapping[str, Any], where: str) -> StepInfo:
    parts = tuple(
        RewardPart(encodable(str(part.name)), float(part.value), role_of(part.role)) for part in info["reward_parts"]
    )
    require_finite(parts, where)
    checked: StepInfo = {"reward_parts": parts, "is_valid": bool(info["is_valid"])}
    success, played = info.get("success"), info.get("played")
    if success is not None:
        checked["success"] = bool(success)
    if played is not None:
        checked["played"] = _played(played)
    return checked


def _played(action: object) -> Message:
    if not isinstance(action, Message) or action.role != "assistant":
        raise TypeError(f"an action that is played instead is an assistant message, got {action!r:.100}")
    (sound,) = as_observation((action,))
    return sound
