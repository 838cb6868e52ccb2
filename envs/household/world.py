"""The household's rules: the effects and texts of commands.

The rules are those of ALFWorld's PDDL domain, and the texts equal the engine's letter by letter. Two rules may
surprise: only a held object can be examined, and a lamp that was turned on stays on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from agentgym.envs.household.commands import Command
from agentgym.envs.household.vocabulary import (
    APPLIANCES,
    CAN_HOLD,
    GOAL_TEMPLATES,
    HELP,
    LAMPS,
    OPENABLE,
    PROCESS_OF,
    PROCESSABLE,
)

NOWHERE: Final = -1
"""The agent's place before its first move, the place of the held object, and the content of an empty hand."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The task; ``place`` is a receptacle type, or a lamp type for ``look_at_obj_in_light``.

    Example:
        >>> Goal("pick_heat_then_place_in_recep", "egg", "garbagecan", 1).sentence
        'heat some egg and put it in garbagecan'
    """

    task_type: str
    object_type: str
    place: str
    wording: int = 0

    @property
    def sentence(self) -> str:
        """Return the goal as a sentence."""
        template = GOAL_TEMPLATES[self.task_type][self.wording]
        return template.format(object=self.object_type, place=self.place)


class House:
    """The constant part of an episode: the goal, and all receptacles and objects in the order of texts."""

    __slots__ = (
        "can_open",
        "goal",
        "key_head",
        "object_types",
        "objects",
        "place_of_name",
        "receptacle_types",
        "receptacles",
        "targets",
        "thing_of_name",
    )

    def __init__(self, goal: Goal, receptacle_types: list[str], object_types: list[str]) -> None:
        """Both lists must be sorted by type. Instances are numbered downwards, as in ALFWorld."""
        self.goal = goal
        self.receptacle_types = receptacle_types
        self.object_types = object_types
        self.receptacles = _numbered(receptacle_types)
        self.objects = _numbered(object_types)
        self.place_of_name = {name: index for index, name in enumerate(self.receptacles)}
        self.thing_of_name = {name: index for index, name in enumerate(self.objects)}
        self.can_open = [kind in OPENABLE for kind in receptacle_types]
        self.targets = [index for index, kind in enumerate(object_types) if kind == goal.object_type]
        self.key_head = f"{goal.task_type} {goal.object_type} {goal.place}"


class State(NamedTuple):
    """A copy of the changing part; the five sets of objects are bit masks."""

    agent: int
    held: int
    places: tuple[int, ...]
    opened: int
    clean: int
    hot: int
    cool: int
    lit: int
    seen: int


class World:
    """A house with a state. Commands are methods that return the answer, or None if the command is impossible.

    Receptacles and objects are indices into the house's lists.
    """

    __slots__ = ("agent", "clean", "cool", "held", "hot", "house", "lit", "opened", "places", "seen")

    def __init__(self, house: House, places: list[int], opened: int = 0) -> None:
        self.house = house
        self.places = places
        """Receptacle of each object; ``NOWHERE`` for the held one."""
        self.agent = NOWHERE
        self.held = NOWHERE
        self.opened = opened
        self.clean = self.hot = self.cool = self.lit = 0
        self.seen = 0
        """Bit mask of the receptacles whose content the agent has seen; used by the gold policy and not part of the
        state."""

    # ----------------------------------------------------------------------------------------------------- texts

    def introduction(self) -> str:
        """Return the first observation."""
        return (
            "You are in the middle of a room. Looking quickly around you, you see "
            f"{_listed(self.house.receptacles)}.\n\nYour task is to: {self.house.goal.sentence}."
        )

    def described(self, place: int) -> str:
        """Describe a receptacle from nearby."""
        house = self.house
        name = house.receptacles[place]
        if not house.can_open[place]:
            start = f"On the {name}, you see "
        elif self.opened >> place & 1:
            start = f"The {name} is open. In it, you see "
        else:
            return f"The {name} is closed."
        self.seen |= 1 << place
        objects = house.objects
        return f"{start}{_listed([objects[i] for i, at in enumerate(self.places) if at == place])}."

    # -------------------------------------------------------------------------------------------------- commands

    def act(self, command: Command) -> str | None:
        """Execute a command. Return None if it is impossible in this state."""
        return _ACTIONS[command.name](self, command.first, command.second)

    def _go_to(self, first: str, _: str) -> str | None:
        place = self.house.place_of_name.get(first)
        if place is None or place == self.agent:
            return None
        self.agent = place
        return f"You arrive at {first}. {self.described(place)}"

    def _open(self, first: str, _: str) -> str | None:
        place = self._here(first)
        if place is None or not self.house.can_open[place] or self.opened >> place & 1:
            return None
        self.opened |= 1 << place
        return f"You open the {first}. {self.described(place)}"

    def _close(self, first: str, _: str) -> str | None:
        place = self._here(first)
        if place is None or not self.opened >> place & 1:
            return None
        self.opened &= ~(1 << place)
        return f"You close the {first}."

    def _take(self, first: str, second: str) -> str | None:
        place, thing = self._here(second), self.house.thing_of_name.get(first)
        if place is None or thing is None or not self.can_take(thing):
            return None
        self.places[thing], self.held = NOWHERE, thing
        return f"You pick up the {first} from the {second}."

    def _move(self, first: str, second: str) -> str | None:
        place, thing = self._here(second), self._in_hand(first)
        if place is None or thing is None or not (self.is_accessible(place) and self.fits(thing, place)):
            return None
        self.places[thing], self.held = place, NOWHERE
        return f"You move the {first} to the {second}."

    def _heat(self, first: str, second: str) -> str | None:
        thing = self._processed("heat", first, second)
        if thing is None:
            return None
        self.hot |= 1 << thing
        self.cool &= ~(1 << thing)
        return f"You heat the {first} using the {second}."

    def _cool(self, first: str, second: str) -> str | None:
        thing = self._processed("cool", first, second)
        if thing is None:
            return None
        self.cool |= 1 << thing
        self.hot &= ~(1 << thing)
        return f"You cool the {first} using the {second}."

    def _clean(self, first: str, second: str) -> str | None:
        thing = self._processed("clean", first, second)
        if thing is None:
            return None
        self.clean |= 1 << thing
        return f"You clean the {first} using the {second}."

    def _use(self, first: str, _: str) -> str | None:
        lamp = self.house.thing_of_name.get(first)
        if lamp is None or self.house.object_types[lamp] not in LAMPS or self.places[lamp] != self.agent:
            return None
        self.lit |= 1 << lamp
        return f"You turn on the {first}."

    def _examine(self, first: str, _: str) -> str | None:
        place = self._here(first)
        if place is not None:
            return self.described(place)
        thing = self._in_hand(first)
        if thing is None:
            return None
        return self._examined(first, self.clean >> thing & 1, self.hot >> thing & 1, self.cool >> thing & 1)

    @staticmethod
    def _examined(name: str, clean: int, hot: int, cool: int) -> str:
        if hot:
            return f"This is a hot{' and clean' if clean else ''} {name}."
        if cool:
            return f"This is a {'cool and clean' if clean else 'cold'} {name}."
        return f"This is a clean {name}." if clean else f"There's nothing special about {name}."

    def _look(self, _: str, __: str) -> str:
        if self.agent == NOWHERE:
            return "You are in the middle of a room. Looking quickly around you, you see nothing."
        return f"You are facing the {self.house.receptacles[self.agent]}. Next to it, you see nothing."

    def _inventory(self, _: str, __: str) -> str:
        if self.held == NOWHERE:
            return "You are not carrying anything."
        return f"You are carrying: a {self.house.objects[self.held]}."

    def _help(self, _: str, __: str) -> str:
        return HELP

    # ----------------------------------------------------------------------------------------------------- rules

    def is_accessible(self, place: int) -> bool:
        """Return True if the receptacle is open or has no door, so that its content can be seen and changed."""
        return bool(self.opened >> place & 1) or not self.house.can_open[place]

    def fits(self, thing: int, place: int) -> bool:
        """Return True if the receptacle's type can hold the object's type."""
        return self.house.object_types[thing] in CAN_HOLD[self.house.receptacle_types[place]]

    def can_take(self, thing: int) -> bool:
        """Return True if the hand is empty and the object is in reach; lamps can never be taken."""
        return (
            self.held == NOWHERE
            and self.agent != NOWHERE
            and self.places[thing] == self.agent
            and self.is_accessible(self.agent)
            and self.house.object_types[thing] not in LAMPS
        )

    def can_process(self, process: str, thing: int, place: int) -> bool:
        """Return True if the receptacle supports the process and the object allows it. It need not be open."""
        return (
            self.house.receptacle_types[place] == APPLIANCES[process]
            and self.house.object_types[thing] in PROCESSABLE[process]
        )

    def is_processed(self, process: str, thing: int) -> bool:
        """Return True if the object is hot, cool or clean."""
        mask = {"heat": self.hot, "cool": self.cool, "clean": self.clean}[process]
        return bool(mask >> thing & 1)

    def is_won(self) -> bool:
        """Return True if the goal is reached in this state."""
        house, goal = self.house, self.house.goal
        if goal.task_type == "look_at_obj_in_light":
            return self.held in house.targets and any(
                self.lit >> lamp & 1 and self.places[lamp] == self.agent and kind == goal.place
                for lamp, kind in enumerate(house.object_types)
            )
        in_place = [
            thing
            for thing in house.targets
            if self.places[thing] != NOWHERE and house.receptacle_types[self.places[thing]] == goal.place
        ]
        if goal.task_type == "pick_two_obj_and_place":
            return len({self.places[thing] for thing in in_place}) < len(in_place)
        process = PROCESS_OF.get(goal.task_type)
        return any(process is None or self.is_processed(process, thing) for thing in in_place)

    def _here(self, name: str) -> int | None:
        """Return the receptacle with this name if the agent is at it, else None."""
        place = self.house.place_of_name.get(name)
        return place if place == self.agent else None

    def _in_hand(self, name: str) -> int | None:
        """Return the object with this name if it is held, else None."""
        thing = self.house.thing_of_name.get(name)
        return thing if thing == self.held else None

    def _processed(self, process: str, first: str, second: str) -> int | None:
        place, thing = self._here(second), self._in_hand(first)
        if place is None or thing is None or not self.can_process(process, thing, place):
            return None
        return thing

    # ----------------------------------------------------------------------------------------------------- state

    def dump(self) -> State:
        """Return a copy of the state."""
        return State(
            self.agent,
            self.held,
            tuple(self.places),
            self.opened,
            self.clean,
            self.hot,
            self.cool,
            self.lit,
            self.seen,
        )

    def load(self, state: State) -> None:
        """Load a state that :meth:`dump` returned."""
        self.agent, self.held, places, self.opened, self.clean, self.hot, self.cool, self.lit, self.seen = state
        self.places = list(places)

    def key(self) -> str:
        """Return a canonical text of the state: goal, agent, hand, and the content of every receptacle."""
        house = self.house
        labels = house.objects
        if self.clean | self.hot | self.cool | self.lit:
            labels = [self._labelled(thing) for thing in range(len(labels))]
        contents = list(house.receptacles)
        opened = self.opened
        for place in range(len(contents)):
            if opened >> place & 1:
                contents[place] += " (open)"
        for thing, place in enumerate(self.places):
            if place != NOWHERE:
                contents[place] += f", {labels[thing]}"
        at = house.receptacles[self.agent] if self.agent != NOWHERE else "-"
        holding = labels[self.held] if self.held != NOWHERE else "-"
        return f"{house.key_head} | at {at} | holding {holding} | {'; '.join(contents)}"

    def _labelled(self, thing: int) -> str:
        states = (("clean", self.clean), ("hot", self.hot), ("cool", self.cool), ("on", self.lit))
        words = " ".join(word for word, mask in states if mask >> thing & 1)
        name = self.house.objects[thing]
        return f"{name} ({words})" if words else name


_ACTIONS: Mapping[str, Callable[[World, str, str], str | None]] = {
    "go_to": World._go_to,
    "open_receptacle": World._open,
    "close_receptacle": World._close,
    "take": World._take,
    "move": World._move,
    "heat": World._heat,
    "clean": World._clean,
    "cool": World._cool,
    "use": World._use,
    "examine": World._examine,
    "look": World._look,
    "inventory": World._inventory,
    "help": World._help,
}


def _numbered(types: list[str]) -> list[str]:
    left: dict[str, int] = {}
    for kind in types:
        left[kind] = left.get(kind, 0) + 1
    names = []
    for kind in types:
        names.append(f"{kind} {left[kind]}")
        left[kind] -= 1
    return names


def _listed(names: list[str]) -> str:
    if not names:
        return "nothing"
    if len(names) == 1:
        return f"a {names[0]}"
    return f"a {', a '.join(names[:-1])}, and a {names[-1]}"
