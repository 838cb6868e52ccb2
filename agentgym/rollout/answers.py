"""What an environment returned, checked and in the types that credit and records expect.

Environments may be wrong, or hostile: a number that is numpy's, a key that cannot be hashed or a message of another
type would otherwise fail much later, and end the run instead of one episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym.canonical import encodable
from agentgym.env.env import StepInfo, TypedStep
from agentgym.env.observations import as_observation
from agentgym.env.rewards import require_finite, role_of
from agentgym.types import Message, RewardPart


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
