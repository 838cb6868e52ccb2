"""Episodes that branch: they begin at a turn of another episode of their group.

A branch copies the turns before it, token by token, and samples from there. Its environment returns to the turn by a
snapshot where it has native ones, else by replay of the actions, which must be answered as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentgym.env.env import Snapshot
from agentgym.errors import ConfigError
from agentgym.types import Observation, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start of an episode of a group, and its help.

    Example (from the third turn of the group's first episode, the next turn with a hint):
        >>> Start(parent=0, turn=2, num_hints=1).is_branch
        True
    """

    parent: int = -1
    """Position among the group's trajectories; -1 for the start of the task."""
    turn: int = 0
    """The first turn that is played anew."""
    num_hints: int = 0
    """Turns from there on whose prompts end with what the environment's oracle would do."""
    reflects: bool = False
    """The policy reads the parent's episode first. If it names a turn and gives advice, the episode begins there, and
    the advice ends the first prompt."""
    advice: str = ""
    """A hint for the first turn, in words."""

    @property
    def is_branch(self) -> bool:
        """True if it is not the start of the task."""
        return self.parent >= 0 and self.turn > 0


START = Start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """The turns that an episode copies, and how its environment returns to the end of them."""

    parent: int
    observation: Observation
    """The environment's first observation."""
    turns: tuple[tuple[Turn, bool], ...]
    """Each with whether it begins a segment."""
    snapshot: Snapshot | None = None
    """A native one; without it the actions are replayed."""


def branch_from(
    start: Start, trajectories: Sequence[Trajectory], snapshots: Sequence[Mapping[int, Snapshot]] = ()
) -> Branch | None:
    """Return what an episode copies; None if it begins at the start of its task.

    Args:
        trajectories: those of the group so far.
        snapshots: of each of them, the native snapshots before its own turns, by turn.

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
