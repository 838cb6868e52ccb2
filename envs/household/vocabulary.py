"""Words of a house, as ``vocabulary.toml`` lists them: rooms, receptacles, objects, and what can be where."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

_FILE: Final = tomllib.loads(resources.files(__package__).joinpath("vocabulary.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Room:
    """A kind of room.

    ``receptacles`` maps a type to how many a room has at most, which is also its weight when a layout is drawn;
    ``usual`` are there whenever there is space; ``lamps`` are the lamp types it may have.
    """

    receptacles: Mapping[str, int]
    usual: tuple[str, ...]
    objects: tuple[str, ...]
    task_types: tuple[str, ...]
    lamps: tuple[str, ...] = ()


TASK_TYPES: Final[tuple[str, ...]] = tuple(_FILE["goals"])
"""The six task types, by ALFWorld's names and in its order."""

GOAL_TEMPLATES: Final[Mapping[str, tuple[str, str]]] = {name: tuple(texts) for name, texts in _FILE["goals"].items()}
"""The two ways a goal of each type reads; ``place`` is the lamp's type for ``look_at_obj_in_light``."""

APPLIANCES: Final[Mapping[str, str]] = {"heat": "microwave", "clean": "sinkbasin", "cool": "fridge"}
"""The receptacle type each process needs."""

PROCESS_OF: Final[Mapping[str, str]] = {f"pick_{process}_then_place_in_recep": process for process in APPLIANCES}
"""Task types that ask for a process, and the process."""

PROCESSABLE: Final[Mapping[str, frozenset[str]]] = {
    process: frozenset(objects.split()) for process, objects in _FILE["processable"].items()
}
"""Object types that a process can be done to."""

OPENABLE: Final = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
LAMPS: Final = frozenset({"desklamp", "floorlamp"})
"""Objects that can be used, and never taken."""

LAMP_STANDS: Final = ("coffeetable", "desk", "diningtable", "dresser", "shelf", "sidetable")
"""Receptacle types a lamp can stand on."""

CAN_HOLD: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(objects.split()) for names, objects in _FILE["holds"].items() for name in names.split()
}
"""Object types that a receptacle type can hold."""


def _room(fields: dict[str, object]) -> Room:
    given: dict[str, Any] = {
        name: tuple(value.split()) if isinstance(value, str) else value for name, value in fields.items()
    }
    return Room(**given)


ROOMS: Final[Mapping[str, Room]] = {name: _room(fields) for name, fields in _FILE["rooms"].items()}
"""Kinds of rooms by name."""
