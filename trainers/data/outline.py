"""Outlines of groups: what other ranks see of the episodes that a rank keeps to itself.

Credit and metrics need the rewards, states and counts of all episodes of a step, but not their tokens, texts and
images, which are nearly all of its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Never

from agentgym.canonical import digest
from agentgym.types import (
    Call,
    ImagePart,
    MalformedCall,
    Message,
    Observation,
    Segment,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

TEXT_COLUMNS = frozenset({"action", "answer", "num_answers", "observation"})
"""Columns of credit that are made from texts."""
LONG_KEY = 32
"""Number of characters above which a state's key is replaced by its digest, which is of that length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadata(TrajectoryGroup):
    """A group whose tokens another rank has; :func:`outlined` makes it."""


class RemoteValues(Sequence[Any]):
    """Values that another rank has: their number, and an error for whoever reads them.

    Example:
        >>> len(RemoteValues(3))
        3
    """

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: object) -> Never:
        raise AssertionError("another rank has these values: receive them (agentgym.trainers.distributed.deal)")


def tokens_of(segment: Segment) -> Sequence[int]:
    """Return all tokens of a window, shape ``[T]``; those of an outline are :class:`RemoteValues`."""
    if any(isinstance(turn.prompt_ids, RemoteValues) for turn in segment.turns):
        return RemoteValues(sum(len(turn.prompt_ids) + len(turn.completion.token_ids) for turn in segment.turns))
    return segment.token_ids


class ConstantSequence(Sequence[Any]):
    """One value, several times.

    Example:
        >>> list(ConstantSequence(7, 3))
        [7, 7, 7]
    """

    def __init__(self, value: object, count: int) -> None:
        self._value, self._count = value, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return ((self._value,) * self._count)[index]


def outlined(group: TrajectoryGroup, *, with_texts: bool) -> GroupMetadata:
    """Return a group without tokens, log-probabilities and images, and without texts if nobody compares them."""
    given = {field.name: getattr(group, field.name) for field in fields(TrajectoryGroup)}
    members = tuple(_outlined(one, with_texts) for one in group.trajectories)
    return GroupMetadata(**{**given, "trajectories": members})


def _outlined(trajectory: Trajectory, with_texts: bool) -> Trajectory:
    return replace(
        trajectory,
        segments=tuple(
            replace(segment, turns=tuple(_turn(turn, with_texts) for turn in segment.turns))
            for segment in trajectory.segments
        ),
        frozen_segments=(),  # the rank that has the episode writes its record
        observation=_said(trajectory.observation, with_texts),
        attempts=tuple(_outlined(other, with_texts) for other in trajectory.attempts),
    )


def _turn(turn: Turn, with_texts: bool) -> Turn:
    sampled = turn.completion
    count, versions = len(sampled.token_ids), set(sampled.policy_versions)
    tokens: Any = RemoteValues(count)
    same: Any = ConstantSequence(next(iter(versions)), count) if len(versions) == 1 else sampled.policy_versions
    prompt: Any = RemoteValues(len(turn.prompt_ids))
    key = turn.state_key
    return replace(
        turn,
        prompt_ids=prompt,
        completion=replace(sampled, token_ids=tokens, logprobs=tokens, policy_versions=same),
        action=_message(turn.action, with_texts),
        played=None if turn.played is None else _message(turn.played, with_texts),
        replies=_said(turn.replies, with_texts),
        state_key=key if key is None or len(key) <= LONG_KEY else digest(key),
        hint=turn.hint if with_texts else turn.hint[:1],
        feedback=turn.feedback if with_texts else turn.feedback[:1],
    )


def _said(messages: Observation, with_texts: bool) -> Observation:
    return tuple(_message(message, with_texts) for message in messages)


def _message(message: Message, with_texts: bool) -> Message:
    result = message.result
    if with_texts:
        parts = message.content
        kept = parts if isinstance(parts, str) else tuple(part for part in parts if not isinstance(part, ImagePart))
        return replace(message, content=kept, result=None if result is None else replace(result, images=()))
    return Message(
        message.role,
        calls=tuple(_call(call) for call in message.calls),
        result=None if result is None else ToolResult("", result.name, error_type=result.error_type),
    )


def _call(call: Call) -> Call:
    return ToolCall(call.name) if isinstance(call, ToolCall) else MalformedCall(call.span, "", "")
