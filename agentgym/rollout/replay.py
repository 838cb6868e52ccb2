"""Success replay: references to earlier successes in a run's records, which can be trained on again.

The episodes themselves stay in the records, so the store is small and fits into a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentgym.errors import CorruptDataError
from agentgym.rollout.record import probe_record_path, read_records, record_path
from agentgym.types import Trajectory, TrajectoryGroup

BEFORE_RL = -1
"""The step of a probe's episodes."""


@dataclass(frozen=True, slots=True)
class RecordRef:
    """The position of an episode in the records of a run."""

    step: int
    """Training step, or :data:`BEFORE_RL`."""
    ordinal: int
    """Ordinal of its group."""
    member: int
    """Index among the group's trajectories."""


@dataclass(frozen=True, slots=True)
class Swap:
    """A member of a group and the earlier episode that replaces it."""

    ordinal: int
    member: int
    stored: RecordRef


@dataclass(frozen=True, slots=True)
class Replayed:
    """Earlier episodes that a step trains again."""

    swaps: tuple[Swap, ...] = ()
    groups: tuple[RecordRef, ...] = ()
    """Places of whole groups, whose ``member`` is 0."""


class SuccessStore:
    """The latest successes of every task of an environment, oldest first, by index into the training tasks.

    Example:
        >>> store = SuccessStore()
        >>> store.add(3, [RecordRef(0, 5, 1), RecordRef(1, 9, 0)], keep=1)
        >>> store.places(3), store.places(4)
        ((RecordRef(step=1, ordinal=9, member=0),), ())
    """

    def __init__(self, places: Mapping[int, tuple[RecordRef, ...]] | None = None) -> None:
        self._places = dict(places or {})

    def add(self, task: int, places: Sequence[RecordRef], keep: int) -> None:
        """Add successes of a task and keep the last ``keep`` of them."""
        if places:
            self._places[task] = (*self.places(task), *places)[-keep:]

    def places(self, task: int) -> tuple[RecordRef, ...]:
        """Return the positions of a task's successes."""
        return self._places.get(task, ())

    def to_dict(self) -> dict[int, list[tuple[int, int, int]]]:
        """Return plain values for a checkpoint."""
        return {task: [(at.step, at.ordinal, at.member) for at in places] for task, places in self._places.items()}

    @classmethod
    def from_dict(cls, saved: Mapping[int, Sequence[tuple[int, int, int]]]) -> SuccessStore:
        """Return the store that :meth:`to_dict` described."""
        return cls({int(task): tuple(RecordRef(*place) for place in places) for task, places in saved.items()})


@dataclass(frozen=True, slots=True)
class Stored:
    """Earlier episodes, read from the run's records."""

    groups: list[TrajectoryGroup]
    """The groups of :attr:`Replayed.groups`."""
    members: dict[Swap, Trajectory]
    """The episode that each swap puts into a group."""


def read_again(groups: Sequence[TrajectoryGroup], again: Replayed, run_dir: Path) -> Stored:
    """Read the episodes that are trained again.

    Args:
        groups: the step's groups, whose tasks the episodes must have.

    Raises:
        CorruptDataError: a record is missing or has been changed.
    """
    records, by_ordinal = _Records(run_dir), {group.ordinal: group for group in groups}
    return Stored(
        [_repeated(records, place) for place in again.groups],
        {swap: _found(records, swap.stored, by_ordinal[swap.ordinal]) for swap in again.swaps},
    )


def swapped(groups: Sequence[TrajectoryGroup], stored: Stored) -> list[TrajectoryGroup]:
    """Return the earlier groups, and the step's groups with some members replaced by earlier episodes."""
    by_ordinal: dict[int, dict[int, Trajectory]] = {}
    for swap, member in stored.members.items():
        by_ordinal.setdefault(swap.ordinal, {})[swap.member] = member
    made = list(stored.groups)
    for group in groups:
        new = by_ordinal.get(group.ordinal, {})
        members = tuple(new.get(at, member) for at, member in enumerate(group.trajectories))
        made.append(replace(group, trajectories=members))
    return made


class _Records:
    """The groups of a run's records, each file read once."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._read: dict[Path, dict[int, TrajectoryGroup]] = {}

    def path(self, place: RecordRef, env_name: str) -> Path:
        """Return the file that holds a place of an environment."""
        before = place.step == BEFORE_RL
        return probe_record_path(self._run_dir, env_name) if before else record_path(self._run_dir, place.step)

    def group(self, place: RecordRef, env_name: str = "") -> TrajectoryGroup | None:
        """Return the group at a place, None if it is not there."""
        path = self.path(place, env_name)
        if path not in self._read:
            self._read[path] = {record.group.ordinal: record.group for record in read_records(path)}
        return self._read[path].get(place.ordinal)


def _repeated(records: _Records, place: RecordRef) -> TrajectoryGroup:
    group = records.group(place)
    if group is None:
        raise CorruptDataError(
            f"{records.path(place, '')} has no group {place.ordinal}, which is to be trained again; the record was "
            "changed"
        )
    first = [place.step if member.replayed_step is None else member.replayed_step for member in group.trajectories]
    members = tuple(replace(member, replayed_step=step) for member, step in zip(group.trajectories, first, strict=True))
    return replace(group, trajectories=members, cut=())


def _found(records: _Records, place: RecordRef, group: TrajectoryGroup) -> Trajectory:
    of, task = records.group(place, group.env_name), group.task
    if of is None or place.member >= len(of.trajectories) or of.task.content_hash != task.content_hash:
        raise CorruptDataError(
            f"{records.path(place, group.env_name)} has no episode {place.member} of group {place.ordinal} on task "
            f"{task.id}, which is to be trained again; the record was changed"
        )
    stored = of.trajectories[place.member]
    # a branch is trained completely, since its parent is not in the group
    return replace(stored, task=task, replayed_step=place.step, parent=-1, branch_turn=0)


Choose = Callable[[Sequence[bool | None], int], tuple[int, int] | None]
"""A function from each member's success and the number of stored successes to (member, stored success), or None."""


def choose_swap(group: TrajectoryGroup, store: SuccessStore, task: int, choose: Choose) -> Swap | None:
    """Return the swap of a group, or None if no member is replaced."""
    successes = [member.success if member.status.is_evidence else None for member in group.trajectories]
    places = store.places(task)
    chosen = choose(successes, len(places))
    return None if chosen is None else Swap(group.ordinal, chosen[0], places[chosen[1]])
