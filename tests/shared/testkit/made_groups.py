"""Groups of episodes built token by token, for tests of code that works on tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentgym.types import (
    Completion,
    FinishReason,
    Message,
    Observation,
    RewardPart,
    Segment,
    Status,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

Tokens = Sequence[int]


def turn(
    prompt: Tokens, sampled: Tokens, *, reward: float = 0.0, index: int = 0, replies: Observation = (), **more: Any
) -> Turn:
    """Return a turn of given tokens; all log-probabilities are -1."""
    completion = Completion(
        token_ids=tuple(sampled),
        logprobs=more.pop("logprobs", (-1.0,) * len(sampled)),
        policy_versions=(0,) * len(sampled),
        finish_reason=FinishReason.STOP,
    )
    return Turn(
        index=index,
        prompt_ids=tuple(prompt),
        completion=completion,
        action=Message("assistant", "a"),
        replies=replies,
        reward_parts=(RewardPart("outcome", reward),),
        **more,
    )


def trajectory(*segments: Sequence[Turn], status: Status = Status.COMPLETED, task: Task | None = None) -> Trajectory:
    """Return an episode of given context windows."""
    return Trajectory(
        task=task or a_task(),
        env_id="made",
        status=status,
        segments=tuple(Segment(tuple(turns)) for turns in segments),
        seed=0,
    )


def a_task(name: str = "t", **data: Any) -> Task:
    """Return a task with data."""
    return Task(id=name, split="train", seed=0, data=data)


def group(*trajectories: Trajectory, task: Task | None = None, ordinal: int = 0) -> TrajectoryGroup:
    """Return a group of given episodes."""
    return TrajectoryGroup(ordinal=ordinal, task=task or trajectories[0].task, trajectories=trajectories)


def two_groups() -> tuple[TrajectoryGroup, TrajectoryGroup]:
    """Return two groups of different lengths; one member failed, and one has two context windows."""
    first = group(
        trajectory([turn([1, 2, 3], [4, 5]), turn([6], [7, 8, 9], reward=1.0)]),
        trajectory([turn([1, 2, 3], [4])], status=Status.ENV_ERROR),
        trajectory([turn([1, 2, 3], [9])], [turn([1, 2], [3, 4, 5, 6], reward=0.5)]),
    )
    second = group(
        trajectory([turn([11, 12, 13, 14, 15], [16, 17])], task=a_task("u")),
        trajectory([turn([11, 12, 13, 14, 15], [18])], task=a_task("u")),
        ordinal=1,
    )
    return first, second
