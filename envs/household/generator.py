"""Draws a household task from a seed: a room, a goal that can be reached and is not yet, and everything's place.

A task's split is a property of its *content*: goal, layout and the targets' places are drawn again until their digest
falls into the split's share. So no world of one split can occur in another, whatever the seeds.
"""

from __future__ import annotations

import hashlib
import random
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, TypeVar

from agentgym.envs.household.vocabulary import (
    APPLIANCES,
    CAN_HOLD,
    LAMP_STANDS,
    LAMPS,
    OPENABLE,
    PROCESS_OF,
    PROCESSABLE,
    ROOMS,
    TASK_TYPES,
    Room,
)
from agentgym.envs.household.world import Goal, House, World
from agentgym.envs.splits import is_byte_in_split
from agentgym.errors import UsageError, require_known

MIN_RECEPTACLES, MAX_RECEPTACLES = 3, 30
MIN_OBJECTS, MAX_OBJECTS = 3, 60

_KNOBS = ("num_receptacles", "num_objects", "task_types", "rooms")


_OPEN_AT_START = 0.05
"""Chance that a receptacle that can be opened stands open at the start."""

_SPARE_TARGET = 0.25
"""Chance of one more target than the goal asks for."""

_MOST_ALIKE = 3
"""Objects of one type, unless the layout cannot take as many others."""

_PATIENCE = 100
"""Draws in vain before more of one type are allowed."""


@dataclass(frozen=True, slots=True)
class Difficulty:
    """Size of a task.

    Raises:
        UsageError: if a number is out of range or a task type unknown.
    """

    num_receptacles: int = 8
    num_objects: int = 8
    task_types: Sequence[str] = TASK_TYPES
    rooms: Sequence[str] = tuple(ROOMS)

    def __post_init__(self) -> None:
        _check_range("num_receptacles", self.num_receptacles, MIN_RECEPTACLES, MAX_RECEPTACLES)
        _check_range("num_objects", self.num_objects, MIN_OBJECTS, MAX_OBJECTS)
        object.__setattr__(self, "task_types", _checked_names("task_types", "task type", self.task_types, TASK_TYPES))
        object.__setattr__(self, "rooms", _checked_names("rooms", "room", self.rooms, tuple(ROOMS)))
        for task_type in self.task_types:
            if not _choices(task_type, self.rooms):
                having = [name for name, room in ROOMS.items() if task_type in room.task_types]
                raise UsageError(f"{task_type} needs one of the rooms {', '.join(having)}; got {', '.join(self.rooms)}")

    def as_data(self) -> dict[str, object]:
        """The difficulty as a task's data.

        Example:
            >>> Difficulty(task_types=["look_at_obj_in_light"], rooms=["bedroom"]).as_data()
            {'num_receptacles': 8, 'num_objects': 8, 'task_types': ('look_at_obj_in_light',), 'rooms': ('bedroom',)}
        """
        return {name: getattr(self, name) for name in _KNOBS}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Difficulty:
        """The difficulty that a task's data tells; what it does not tell is as by default.

        Raises:
            UsageError: if the data holds anything else.
        """
        for name in data:
            require_known("household task data", name, _KNOBS)
        return Difficulty(**data)


def generate(seed: int, split: str, difficulty: Difficulty) -> World:
    """The world of one task, a function of the arguments alone.

    Raises:
        UnknownNameError: if there is no such split.

    Example:
        >>> world = generate(3, "train", Difficulty())
        >>> world.is_won(), len(world.house.receptacles), len(world.house.objects)
        (False, 8, 8)
    """
    # An own generator, seeded by the task alone, so that an episode's seed cannot move a task into another split.
    uniform = random.Random(seed).random
    while True:
        plan = _Plan(uniform, difficulty)
        if is_byte_in_split(plan.content_byte(), split):
            return plan.world()


@dataclass(frozen=True, slots=True)
class _Choice:
    """A goal that a room allows."""

    room: str
    task_type: str
    object_type: str
    place: str
    """Receptacle type, or lamp type for ``look_at_obj_in_light``."""
    sources: tuple[str, ...]
    """Receptacle types where the targets may be at the start."""
    needed: tuple[str, ...]
    """Receptacle types the layout cannot do without, beside one source and one place for the lamp."""


class _Plan:
    """The part of a world that decides its split: the goal, the layout, and where targets and lamps are."""

    def __init__(self, uniform: _Uniform, difficulty: Difficulty) -> None:
        self.uniform = uniform
        self.difficulty = difficulty
        task_type = _drawn(difficulty.task_types, uniform)
        self.choice = choice = _drawn(_drawn(_choices(task_type, difficulty.rooms), uniform), uniform)
        self.receptacle_types = kinds = self._layout()
        sources = [index for index, kind in enumerate(kinds) if kind in choice.sources]
        num_targets = 1 + (task_type == "pick_two_obj_and_place") + (uniform() < _SPARE_TARGET)
        self.placed = [(choice.object_type, _drawn(sources, uniform)) for _ in range(num_targets)]
        if choice.place in LAMPS:
            stands = [index for index, kind in enumerate(kinds) if kind in LAMP_STANDS]
            self.placed.append((choice.place, _drawn(stands, uniform)))

    def content_byte(self) -> int:
        """First byte of the digest of the plan, which can be read off the finished world again.

        (All targets are placed by the plan and none by :meth:`world`, or two plans could lead to one world.)
        """
        choice = self.choice
        content = f"{choice.task_type}{choice.object_type}{choice.place}{self.receptacle_types}{sorted(self.placed)}"
        return hashlib.blake2b(content.encode(), digest_size=1).digest()[0]

    def world(self) -> World:
        """Fill the house with other objects and open a few receptacles."""
        uniform, choice, kinds = self.uniform, self.choice, self.receptacle_types
        held_by = _fillers(choice.room, choice.object_type)
        options = [(place, held_by[kind]) for place, kind in enumerate(kinds) if held_by[kind]]
        placed = [(kind, uniform(), place) for kind, place in self.placed]
        count: dict[str, int] = {}
        num_misses = 0
        while len(placed) < self.difficulty.num_objects:
            place, held = options[int(uniform() * len(options))]
            kind = held[int(uniform() * len(held))]
            if count.get(kind, 0) >= _MOST_ALIKE and num_misses < _PATIENCE:
                num_misses += 1
                continue
            count[kind] = count.get(kind, 0) + 1
            placed.append((kind, uniform(), place))
        placed.sort()  # by type, then at random, so that an object's number says nothing of its place
        goal = Goal(choice.task_type, choice.object_type, choice.place, int(uniform() * 2))
        opened = 0
        for place, kind in enumerate(kinds):
            if kind in OPENABLE and uniform() < _OPEN_AT_START:
                opened |= 1 << place
        return World(House(goal, kinds, [item[0] for item in placed]), [item[2] for item in placed], opened)

    def _layout(self) -> list[str]:
        choice, uniform, size = self.choice, self.uniform, self.difficulty.num_receptacles
        room = ROOMS[choice.room]
        kinds = list(choice.needed)
        if not any(kind in choice.sources for kind in kinds):
            kinds.append(_drawn(choice.sources, uniform))
        if choice.place in LAMPS and not any(kind in LAMP_STANDS for kind in kinds):
            kinds.append(_drawn([kind for kind in LAMP_STANDS if kind in room.receptacles], uniform))
        kinds += [kind for kind in room.usual if kind not in kinds][: size - len(kinds)]
        names, bounds = _weights(choice.room)
        while len(kinds) < size:
            kind = names[bisect(bounds, uniform() * bounds[-1])]
            # A room as full as rooms get has more of everything.
            if kinds.count(kind) < room.receptacles[kind] or len(kinds) >= bounds[-1]:
                kinds.append(kind)
        kinds.sort()
        return kinds


_Uniform = Callable[[], float]
_Item = TypeVar("_Item")


def _drawn(items: Sequence[_Item], uniform: _Uniform) -> _Item:
    return items[int(uniform() * len(items))]


@cache
def _choices(task_type: str, rooms: tuple[str, ...]) -> tuple[tuple[_Choice, ...], ...]:
    """Goals of a type, by room."""
    return tuple(
        tuple(_room_choices(name, ROOMS[name], task_type)) for name in rooms if task_type in ROOMS[name].task_types
    )


def _room_choices(name: str, room: Room, task_type: str) -> Iterator[_Choice]:
    process = PROCESS_OF.get(task_type)
    appliance = APPLIANCES[process] if process else ""
    for object_type in room.objects:
        holders = tuple(kind for kind in room.receptacles if object_type in CAN_HOLD[kind])
        if task_type == "look_at_obj_in_light":
            for lamp in room.lamps:
                yield _Choice(name, task_type, object_type, lamp, holders, ())
            continue
        if process and object_type not in PROCESSABLE[process]:
            continue
        for place in holders:
            sources = holders if process else tuple(kind for kind in holders if kind != place)
            if sources and place != appliance:
                yield _Choice(name, task_type, object_type, place, sources, (place, appliance) if process else (place,))


@cache
def _fillers(room: str, target: str) -> Mapping[str, tuple[str, ...]]:
    """For each receptacle type of a room, the room's objects that can be there, the target's type left out."""
    objects = [kind for kind in ROOMS[room].objects if kind != target]
    return {place: tuple(k for k in objects if k in CAN_HOLD[place]) for place in ROOMS[room].receptacles}


@cache
def _weights(room: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    receptacles = ROOMS[room].receptacles
    return tuple(receptacles), tuple(accumulate(receptacles.values()))


def _checked_names(knob: str, kind: str, names: Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise UsageError(f"{knob} is a non-empty sequence of {', '.join(known)}; got {names!r}")
    for name in names:
        require_known(kind, name, known)
    return tuple(names)


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"{name} is a whole number from {low} to {high}, got {value!r}")
