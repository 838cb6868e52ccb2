"""Branching episodes, which begin at a turn of another episode of their group.

A branch copies the earlier turns with their tokens and samples from there. Its environment returns to the turn through
a native snapshot if it has one, else by replaying the actions. The replies to replayed actions must equal the recorded
ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentgym.env.env import Snapshot
from agentgym.errors import ConfigError
from agentgym.types import Observation, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start of an episode of a group, and its hints.

    Example (from the third turn of the group's first episode, the next turn with a hint):
        >>> Start(parent=0, turn=2, num_hints=1).is_branch
        True
    """

    parent: int = -1
    """Index of the parent among the group's trajectories; -1 for the start of the task."""
    turn: int = 0
    """First turn that is not copied."""
    num_hints: int = 0
    """Number of turns from there whose prompts end with the oracle's next action."""
    reflects: bool = False
    """True if the policy reads the parent's episode first. If it names a turn and gives advice, the episode begins at
    this turn, and the advice ends the first prompt."""
    advice: str = ""
    """Advice for the first turn, as text."""
    demonstrates: bool = False
    """True if the environment's oracle plays the episode."""

    @property
    def is_branch(self) -> bool:
        """True if the episode does not begin at the start of the task."""
        return self.parent >= 0 and self.turn > 0


START = Start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """The turns that an episode copies, and the snapshot to which its environment returns."""

    parent: int
    observation: Observation
    """The environment's first observation."""
    turns: tuple[tuple[Turn, bool], ...]
    """Copied turns, each with True if it begins a segment."""
    snapshot: Snapshot | None = None
    """Native snapshot after the copied turns; if None, the actions are replayed."""


def branch_from(
    start: Start, trajectories: Sequence[Trajectory], snapshots: Sequence[Mapping[int, Snapshot]] = ()
) -> Branch | None:
    """Return the branch of an episode, or None if it begins at the start of its task.

    Args:
        start: start of the episode.
        trajectories: trajectories of the group so far.
        snapshots: for each trajectory, native snapshots before its own turns, by turn.

    Raises:
        ConfigError: there is no such episode or turn, or the episode failed.
    """
    if not start.is_branch:
        return None
    if start.parent >= len(trajectories) or not trajectories[start.parent].status.is_evidence:
        raise ConfigError(f"{start}: a branch needs an episode of the group that did not fail")
    parent = trajectories[start.parent]
    turns = tuple((turn, at == 0) for segment in parent.segments for at, turn in enumerate(segment.turns))
    if start.turn >= len(turns):
        raise ConfigError(f"{start}: episode {start.parent} of the group has {len(turns)} turns, counted from 0")
    owner = start.parent
    while start.turn < trajectories[owner].branch_turn:
        owner = trajectories[owner].parent
    held = snapshots[owner] if owner < len(snapshots) else {}
    return Branch(
        parent=start.parent,
        observation=parent.observation,
        turns=turns[: start.turn],
        snapshot=held.get(start.turn),
    )
