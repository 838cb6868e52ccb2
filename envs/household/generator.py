"""The generator of household tasks: a room, a goal that is reachable but not reached, and the place of every object.

A task's split depends on its *content*: goal, layout and the targets' places are drawn until their digest falls into
the split's share. No world of one split can therefore occur in another, for any seed.
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
"""Probability that an openable receptacle is open at the start."""

_SPARE_TARGET = 0.25
"""Probability of one target more than the goal requires."""

_MOST_ALIKE = 3
"""Most objects of one type, unless the layout has too little space for others."""

_PATIENCE = 100
"""Number of failed draws after which more objects of one type are allowed."""


@dataclass(frozen=True, slots=True)
class Difficulty:
    """Size of a task.

    Raises:
        UsageError: a number is out of range, or a task type is unknown.
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
        """Return the difficulty as a task's data.

        Example:
            >>> Difficulty(task_types=["look_at_obj_in_light"], rooms=["bedroom"]).as_data()
            {'num_receptacles': 8, 'num_objects': 8, 'task_types': ('look_at_obj_in_light',), 'rooms': ('bedroom',)}
        """
        return {name: getattr(self, name) for name in _KNOBS}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Difficulty:
        """Return the difficulty in a task's data; missing values are the defaults.

        Raises:
            UsageError: the data contain an unknown key.
        """
        for name in data:
            require_known("household task data", name, _KNOBS)
        return Difficulty(**data)


def generate(seed: int, split: str, difficulty: Difficulty) -> World:
    """Generate the world of a task, which depends only on the arguments.

    Raises:
        UnknownNameError: there is no such split.

    Example:
        >>> world = generate(3, "train", Difficulty())
        >>> world.is_won(), len(world.house.receptacles), len(world.house.objects)
        (False, 8, 8)
    """
    # A generator seeded only by the task, so that an episode's seed cannot move the task to another split.
    uniform = random.Random(seed).random
    while True:
        plan = _Plan(uniform, difficulty)
        if is_byte_in_split(plan.content_byte(), split):
            return plan.world()


@dataclass(frozen=True, slots=True)
class _Choice:
    """A possible goal in a room."""

    room: str
    task_type: str
    object_type: str
    place: str
    """Receptacle type, or lamp type for ``look_at_obj_in_light``."""
    sources: tuple[str, ...]
    """Receptacle types in which targets may be at the start."""
    needed: tuple[str, ...]
    """Receptacle types that the layout needs, in addition to one source and one place for the lamp."""


class _Plan:
    """The part of a world that decides its split: goal, layout, and places of targets and lamps."""

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
        """Return the first byte of the plan's digest, which can also be computed from the finished world.

        The plan places all targets and :meth:`world` none. Otherwise two plans could lead to the same world.
        """
        choice = self.choice
        content = f"{choice.task_type}{choice.object_type}{choice.place}{self.receptacle_types}{sorted(self.placed)}"
        return hashlib.blake2b(content.encode(), digest_size=1).digest()[0]

    def world(self) -> World:
        """Return the world after adding other objects and opening a few receptacles."""
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
        placed.sort()  # by type, then at random, so that an object's number reveals nothing about its place
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
            # In a room of maximal size there is more of everything.
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
    """Return the possible goals of a task type by room."""
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
    """Return, for each receptacle type of a room, the room's objects that it can hold, without the target's type."""
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
