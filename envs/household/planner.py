"""The gold policy: an agent that searches, and knows only what it has been shown.

It is a function of the world's state and of which receptacles were shown, so it goes on sensibly from anywhere: it
puts down what it does not need, processes a target that was cooled instead of heated, opens what was closed again.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentgym.envs.household.commands import Command
from agentgym.envs.household.vocabulary import APPLIANCES, CAN_HOLD, LAMP_STANDS, PROCESS_OF
from agentgym.envs.household.world import NOWHERE, World


def next_command(world: World) -> Command:
    """The gold policy's next command in a world that is not yet won."""
    goal = world.house.goal
    if world.held != NOWHERE and world.held not in world.house.targets:
        return _put_down(world)
    if goal.task_type == "look_at_obj_in_light":
        return _light(world)
    if goal.task_type == "pick_two_obj_and_place":
        return _collect(world)
    process = PROCESS_OF.get(goal.task_type)
    destination = _nearest(world, _of_type(world, goal.place))
    if world.held == NOWHERE:
        return _fetch(world, process)
    if process is not None and not world.is_processed(process, world.held):
        place = _nearest(world, _of_type(world, APPLIANCES[process]))
        return _at(world, place) or _command(world, process, place)
    return _put(world, destination)


def _light(world: World) -> Command:
    if world.held == NOWHERE:
        return _fetch(world, None)
    lamp = world.house.object_types.index(world.house.goal.place)
    place = world.places[lamp]
    if not world.seen >> place & 1:
        return _search(world, [at for at, kind in enumerate(world.house.receptacle_types) if kind in LAMP_STANDS])
    return _at(world, place) or Command("use", world.house.objects[lamp])


def _collect(world: World) -> Command:
    """Both objects belong in the same receptacle: the one of the right type that holds most of them already."""
    house = world.house
    options = _of_type(world, house.goal.place)
    known = [world.places[thing] for thing in house.targets if _is_known(world, thing)]
    destination = max(options, key=lambda place: (known.count(place), place == world.agent))
    if world.held != NOWHERE:
        return _put(world, destination)
    return _fetch(world, None, destination)


def _fetch(world: World, process: str | None, leave: int = NOWHERE) -> Command:
    """Take a target that is known to be somewhere else than in ``leave``, else search for one."""
    things = [thing for thing in world.house.targets if _is_known(world, thing) and world.places[thing] != leave]
    if not things:
        kind = world.house.goal.object_type
        return _search(world, [at for at, place in enumerate(world.house.receptacle_types) if kind in CAN_HOLD[place]])
    thing = max(things, key=lambda t: (process is not None and world.is_processed(process, t), _is_here(world, t)))
    place = world.places[thing]
    return _at(world, place) or _opened(world, place) or _command(world, "take", place, thing)


def _search(world: World, places: Iterable[int]) -> Command:
    """Look at the next receptacle that was not shown yet, in the order of the first observation."""
    unseen = [place for place in places if not world.seen >> place & 1]
    place = _nearest(world, unseen)
    return _at(world, place) or _opened(world, place) or Command("examine", world.house.receptacles[place])


def _put(world: World, place: int) -> Command:
    return _at(world, place) or _opened(world, place) or _command(world, "move", place)


def _put_down(world: World) -> Command:
    """Put the held object into the nearest receptacle that takes it, one that stands open if there is one."""
    places = [place for place in range(len(world.house.receptacles)) if world.fits(world.held, place)]
    accessible = [place for place in places if world.is_accessible(place) and world.seen >> place & 1]
    return _put(world, _nearest(world, accessible or places))


def _at(world: World, place: int) -> Command | None:
    """The way to a receptacle, None if the agent is there."""
    return None if world.agent == place else Command("go_to", world.house.receptacles[place])


def _opened(world: World, place: int) -> Command | None:
    """The opening of the receptacle the agent is at, None if it needs none."""
    return None if world.is_accessible(place) else Command("open_receptacle", world.house.receptacles[place])


def _command(world: World, name: str, place: int, thing: int | None = None) -> Command:
    return Command(name, world.house.objects[world.held if thing is None else thing], world.house.receptacles[place])


def _is_known(world: World, thing: int) -> bool:
    """True if the object lies where the agent was shown it; what it moved itself it put where it had looked."""
    place = world.places[thing]
    return place != NOWHERE and bool(world.seen >> place & 1)


def _is_here(world: World, thing: int) -> bool:
    return world.places[thing] == world.agent


def _nearest(world: World, places: list[int]) -> int:
    """The agent's own place if it is among them, else the first."""
    return world.agent if world.agent in places else places[0]


def _of_type(world: World, kind: str) -> list[int]:
    return [place for place, found in enumerate(world.house.receptacle_types) if found == kind]
