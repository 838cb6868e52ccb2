"""What there is in a house: rooms, receptacles, objects, and what can be where.

Names, and which receptacle can hold which object, are ALFWorld's (``VAL_RECEPTACLE_OBJECTS`` and
``VAL_ACTION_OBJECTS`` of its 0.4.2 release), without sliced food and without objects that hold others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

TASK_TYPES: Final = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""The six task types, by ALFWorld's names and in its order."""

GOAL_TEMPLATES: Final[Mapping[str, tuple[str, str]]] = {
    "pick_and_place_simple": ("put a {object} in {place}", "put some {object} on {place}"),
    "look_at_obj_in_light": ("look at {object} under the {place}", "examine the {object} with the {place}"),
    "pick_clean_then_place_in_recep": ("put a clean {object} in {place}", "clean some {object} and put it in {place}"),
    "pick_heat_then_place_in_recep": ("put a hot {object} in {place}", "heat some {object} and put it in {place}"),
    "pick_cool_then_place_in_recep": ("put a cool {object} in {place}", "cool some {object} and put it in {place}"),
    "pick_two_obj_and_place": ("put two {object} in {place}", "find two {object} and put them in {place}"),
}
"""The two ways a goal of each type reads; ``place`` is the lamp's type for ``look_at_obj_in_light``."""

APPLIANCES: Final[Mapping[str, str]] = {"heat": "microwave", "clean": "sinkbasin", "cool": "fridge"}
"""The receptacle type each process needs."""

PROCESS_OF: Final[Mapping[str, str]] = {
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
}
"""Task types that ask for a process, and the process."""

OPENABLE: Final = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
LAMPS: Final = frozenset({"desklamp", "floorlamp"})
"""Objects that can be used, and never taken."""


def _types(text: str) -> tuple[str, ...]:
    return tuple(text.split())


HEATABLE: Final = frozenset(_types("apple bread cup egg mug plate potato tomato"))
COOLABLE: Final = frozenset(_types("apple bowl bread cup egg lettuce mug pan plate pot potato tomato winebottle"))
CLEANABLE: Final = frozenset(
    _types(
        "apple bowl butterknife cloth cup dishsponge egg fork kettle knife ladle lettuce mug pan plate pot potato"
        " soapbar spatula spoon tomato"
    )
)
PROCESSABLE: Final[Mapping[str, frozenset[str]]] = {"heat": HEATABLE, "clean": CLEANABLE, "cool": COOLABLE}

_SEAT = "basketball book box cellphone cloth creditcard keychain laptop newspaper pillow remotecontrol"
_TABLE = (
    "alarmclock apple baseballbat basketball book bowl box bread butterknife candle cd cellphone cloth creditcard cup"
    " dishsponge egg fork glassbottle handtowel kettle keychain knife ladle laptop lettuce mug newspaper pan papertowel"
    " pen pencil peppershaker plate pot potato remotecontrol saltshaker soapbar soapbottle spatula spoon spraybottle"
    " statue tennisracket tissuebox toiletpaper toiletpaperroll tomato vase watch wateringcan winebottle"
)
_DRESSER = (
    "alarmclock basketball book bowl box candle cd cellphone cloth creditcard cup glassbottle keychain laptop mug"
    " newspaper pen pencil plate remotecontrol spraybottle statue tennisracket tissuebox toiletpaper toiletpaperroll"
    " vase watch wateringcan winebottle"
)
_HOLDS: Mapping[str, str] = {
    "armchair": _SEAT,
    "bathtubbasin": "cloth dishsponge handtowel soapbar",
    "bed": "baseballbat basketball book cellphone laptop newspaper pillow tennisracket",
    "cabinet": (
        "book bowl box candle cd cloth cup dishsponge glassbottle handtowel kettle ladle mug newspaper pan"
        " peppershaker plate plunger pot saltshaker soapbar soapbottle spraybottle tissuebox toiletpaper"
        " toiletpaperroll vase wateringcan winebottle"
    ),
    "cart": (
        "candle cloth dishsponge handtowel mug papertowel plunger soapbar soapbottle spraybottle statue tissuebox"
        " toiletpaper toiletpaperroll vase"
    ),
    "coffeemachine": "mug",
    "coffeetable": _TABLE,
    "countertop": _TABLE,
    "desk": _DRESSER + " soapbottle",
    "diningtable": _TABLE,
    "drawer": (
        "book butterknife candle cd cellphone cloth creditcard dishsponge fork handtowel keychain knife ladle newspaper"
        " pen pencil peppershaker remotecontrol saltshaker soapbar soapbottle spatula spoon spraybottle tissuebox"
        " toiletpaper toiletpaperroll watch wateringcan"
    ),
    "dresser": _DRESSER,
    "fridge": "apple bowl bread cup egg glassbottle lettuce mug pan plate pot potato tomato winebottle",
    "garbagecan": (
        "apple bread cd cloth dishsponge egg handtowel lettuce newspaper papertowel pen pencil potato soapbar"
        " soapbottle spraybottle tissuebox toiletpaper toiletpaperroll tomato winebottle"
    ),
    "handtowelholder": "handtowel",
    "laundryhamper": "cloth",
    "microwave": "apple bowl bread cup egg glassbottle mug plate potato tomato",
    "ottoman": _SEAT,
    "safe": "cd cellphone creditcard keychain statue vase watch",
    "shelf": (
        "alarmclock book bowl box candle cd cellphone cloth creditcard cup dishsponge glassbottle handtowel kettle"
        " keychain mug newspaper papertowel pen pencil peppershaker plate pot remotecontrol saltshaker soapbar"
        " soapbottle spraybottle statue tissuebox toiletpaper toiletpaperroll vase watch wateringcan winebottle"
    ),
    "sidetable": _TABLE,
    "sinkbasin": (
        "apple bowl butterknife cloth cup dishsponge egg fork glassbottle handtowel kettle knife ladle lettuce mug pan"
        " plate pot potato soapbar spatula spoon tomato"
    ),
    "sofa": _SEAT,
    "stoveburner": "kettle pan pot",
    "toaster": "",
    "toilet": (
        "candle cloth dishsponge handtowel newspaper papertowel soapbar soapbottle spraybottle tissuebox toiletpaper"
        " toiletpaperroll"
    ),
    "toiletpaperhanger": "toiletpaper toiletpaperroll",
    "towelholder": "towel",
    "tvstand": "tissuebox",
}
CAN_HOLD: Final[Mapping[str, frozenset[str]]] = {name: frozenset(_types(held)) for name, held in _HOLDS.items()}
"""Object types that a receptacle type can hold."""


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


LAMP_STANDS: Final = ("coffeetable", "desk", "diningtable", "dresser", "shelf", "sidetable")
"""Receptacle types a lamp can stand on."""

ROOMS: Final[Mapping[str, Room]] = {
    "kitchen": Room(
        receptacles={
            "cabinet": 8,
            "coffeemachine": 1,
            "countertop": 3,
            "diningtable": 1,
            "drawer": 6,
            "fridge": 1,
            "garbagecan": 1,
            "microwave": 1,
            "shelf": 2,
            "sidetable": 1,
            "sinkbasin": 1,
            "stoveburner": 4,
            "toaster": 1,
        },
        usual=("fridge", "microwave", "sinkbasin"),
        objects=_types(
            "apple book bowl bread butterknife cellphone creditcard cup dishsponge egg fork glassbottle kettle knife"
            " ladle lettuce mug pan pen pencil peppershaker plate pot potato saltshaker soapbottle spatula spoon"
            " spraybottle statue tomato vase winebottle"
        ),
        task_types=(
            "pick_and_place_simple",
            "pick_clean_then_place_in_recep",
            "pick_heat_then_place_in_recep",
            "pick_cool_then_place_in_recep",
            "pick_two_obj_and_place",
        ),
    ),
    "living room": Room(
        receptacles={
            "armchair": 2,
            "cabinet": 2,
            "coffeetable": 2,
            "desk": 1,
            "diningtable": 1,
            "drawer": 5,
            "dresser": 1,
            "garbagecan": 1,
            "ottoman": 1,
            "safe": 1,
            "shelf": 4,
            "sidetable": 3,
            "sofa": 2,
            "tvstand": 1,
        },
        usual=("sofa", "coffeetable"),
        objects=_types(
            "book bowl box candle cellphone creditcard keychain laptop newspaper pen pencil pillow plate remotecontrol"
            " statue tissuebox vase watch wateringcan"
        ),
        task_types=("pick_and_place_simple", "look_at_obj_in_light", "pick_two_obj_and_place"),
        lamps=("desklamp", "floorlamp"),
    ),
    "bedroom": Room(
        receptacles={
            "armchair": 1,
            "bed": 2,
            "cabinet": 2,
            "desk": 2,
            "drawer": 6,
            "dresser": 1,
            "garbagecan": 1,
            "laundryhamper": 1,
            "safe": 1,
            "shelf": 4,
            "sidetable": 2,
        },
        usual=("bed", "desk"),
        objects=_types(
            "alarmclock baseballbat basketball book bowl box cd cellphone cloth creditcard keychain laptop mug pen"
            " pencil pillow remotecontrol statue tennisracket tissuebox vase watch"
        ),
        task_types=("pick_and_place_simple", "look_at_obj_in_light", "pick_two_obj_and_place"),
        lamps=("desklamp",),
    ),
    "bathroom": Room(
        receptacles={
            "bathtubbasin": 1,
            "cabinet": 4,
            "cart": 1,
            "countertop": 2,
            "drawer": 4,
            "garbagecan": 1,
            "handtowelholder": 2,
            "shelf": 2,
            "sidetable": 1,
            "sinkbasin": 2,
            "toilet": 1,
            "toiletpaperhanger": 1,
            "towelholder": 1,
        },
        usual=("sinkbasin", "toilet"),
        objects=_types(
            "candle cloth dishsponge handtowel papertowel plunger soapbar soapbottle spraybottle tissuebox toiletpaper"
            " toiletpaperroll towel"
        ),
        task_types=("pick_and_place_simple", "pick_clean_then_place_in_recep", "pick_two_obj_and_place"),
    ),
}
