"""Rooms, receptacles and objects from ``vocabulary.toml``, and their possible places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from agentgym.canonical import packaged

_FILE: Final = packaged(__package__, "vocabulary.toml")


@dataclass(frozen=True, slots=True)
class Room:
    """A kind of room.

    ``receptacles`` maps a type to its largest number in a room, which is also its weight when a layout is drawn.
    ``usual`` types are present whenever there is space. ``lamps`` are the possible lamp types.
    """

    receptacles: Mapping[str, int]
    usual: tuple[str, ...]
    objects: tuple[str, ...]
    task_types: tuple[str, ...]
    lamps: tuple[str, ...] = ()


HELP: Final[str] = _FILE["help"]
"""Text of the command ``help``."""
COMMANDS: Final[Mapping[str, Any]] = _FILE["commands"]
"""Forms of the commands, and descriptions of their arguments."""

TASK_TYPES: Final[tuple[str, ...]] = tuple(_FILE["goals"])
"""The six task types, by ALFWorld's names and in its order."""

GOAL_TEMPLATES: Final[Mapping[str, tuple[str, str]]] = {name: tuple(texts) for name, texts in _FILE["goals"].items()}
"""The two texts of a goal of each type; ``place`` is the lamp's type for ``look_at_obj_in_light``."""

APPLIANCES: Final[Mapping[str, str]] = {"heat": "microwave", "clean": "sinkbasin", "cool": "fridge"}
"""Receptacle type that each process needs."""

PROCESS_OF: Final[Mapping[str, str]] = {f"pick_{process}_then_place_in_recep": process for process in APPLIANCES}
"""Processes of the task types that have one."""

PROCESSABLE: Final[Mapping[str, frozenset[str]]] = {
    process: frozenset(objects.split()) for process, objects in _FILE["processable"].items()
}
"""Object types that each process can be applied to."""

OPENABLE: Final = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
LAMPS: Final = frozenset({"desklamp", "floorlamp"})
"""Objects that can be used but not taken."""

LAMP_STANDS: Final = ("coffeetable", "desk", "diningtable", "dresser", "shelf", "sidetable")
"""Receptacle types that a lamp can stand on."""

CAN_HOLD: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(objects.split()) for names, objects in _FILE["holds"].items() for name in names.split()
}
"""Object types that each receptacle type can hold."""


def _room(fields: dict[str, object]) -> Room:
    given: dict[str, Any] = {
        name: tuple(value.split()) if isinstance(value, str) else value for name, value in fields.items()
    }
    return Room(**given)


ROOMS: Final[Mapping[str, Room]] = {name: _room(fields) for name, fields in _FILE["rooms"].items()}
"""Kinds of rooms by name."""
