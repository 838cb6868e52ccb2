"""Episodes made up of turns with given tokens, for tests of strategies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentgym.types import Completion, FinishReason, Message, Segment, Status, Trajectory, Turn
from testkit.drawing_engine import TASK


def made_turn(logprobs: Sequence[float], tokens: Sequence[int] = (), **changes: Any) -> Turn:
    """Return a turn with one token per log-probability."""
    completion = Completion(
        token_ids=tuple(tokens) or tuple(range(1, len(logprobs) + 1)),
        logprobs=tuple(logprobs),
        policy_versions=(0,) * len(logprobs),
        finish_reason=FinishReason.STOP,
    )
    return replace(Turn(index=0, action=Message("assistant", "x"), completion=completion), **changes)


def made_episode(turns: Sequence[Turn], *, success: bool = False, **changes: Any) -> Trajectory:
    """Return an episode of some turns, each in a state of its own."""
    numbered = tuple(replace(turn, index=at, state_key=turn.state_key or f"s{at}") for at, turn in enumerate(turns))
    made = Trajectory(
        task=TASK, env_id="x", status=Status.COMPLETED, segments=(Segment(numbered),), seed=0, success=success
    )
    return replace(made, **changes)


def surprising(*logprobs: float, **changes: Any) -> Trajectory:
    """Return an episode of one turn per number, the log-probability of its only token."""
    return made_episode([made_turn([value]) for value in logprobs], **changes)
