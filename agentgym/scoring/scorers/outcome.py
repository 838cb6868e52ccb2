"""The environment's own word, which sees the state that an episode ended in."""

from __future__ import annotations

from agentgym.scoring.component import scorer
from agentgym.types import RewardRole, Trajectory


@scorer("outcome")
def outcome(trajectory: Trajectory) -> float:
    """1.0 if the environment counts the episode as a success."""
    return float(bool(trajectory.success))


@scorer("partial")
def partial(trajectory: Trajectory) -> float:
    """The sum of the outcome rewards, cut to 0 to 1: partial credit where an environment gives some."""
    parts = (
        part.value
        for segment in trajectory.segments
        if not segment.agent
        for turn in segment.turns
        for part in turn.reward_parts
        if part.role is RewardRole.OUTCOME
    )
    return min(1.0, max(0.0, sum(parts)))
