"""Reward parts of an episode, summed by role."""

from __future__ import annotations

from collections.abc import Iterable

from agentgym.types import RewardPart, RewardRole, Turn


def total(parts: Iterable[RewardPart]) -> float:
    """Sum of all parts.

    Example:
        >>> total((RewardPart("solved", 1.0), RewardPart("tool_cost", -0.1, RewardRole.COST)))
        0.9
    """
    return sum(part.value for part in parts)


def return_of_role(turns: Iterable[Turn], role: RewardRole) -> float:
    """Undiscounted sum over an episode of the parts with one role."""
    return sum(part.value for turn in turns for part in turn.reward_parts if part.role is role)
