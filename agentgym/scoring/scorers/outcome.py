"""Scorers that use the environment's own rewards."""

from __future__ import annotations

from agentgym.scoring.component import scorer
from agentgym.types import RewardRole, Trajectory


@scorer("outcome")
def outcome(trajectory: Trajectory) -> float:
    """Return 1.0 if the environment counts the episode as a success."""
    return float(bool(trajectory.success))


@scorer("partial")
def partial(trajectory: Trajectory) -> float:
    """Return the sum of outcome rewards, clipped to [0, 1]: partial credit if the environment gives any."""
    parts = (
        part.value
        for segment in trajectory.segments
        if not segment.agent
        for turn in segment.turns
        for part in turn.reward_parts
        if part.role is RewardRole.OUTCOME
    )
    return min(1.0, max(0.0, sum(parts)))
