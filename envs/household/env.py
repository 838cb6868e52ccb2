"""``agentgym/Household-v0``: do household tasks with tool calls or text commands in a generated, ALFWorld-like room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from agentgym.env.tasks import SeededTasks
from agentgym.envs.household.commands import Command, format_command
from agentgym.envs.household.generator import Difficulty, generate
from agentgym.envs.household.interface import CommandEnv
from agentgym.envs.household.vocabulary import APPLIANCES, CAN_HOLD, LAMP_STANDS, LAMPS, PROCESS_OF, ROOMS, TASK_TYPES
from agentgym.envs.household.world import NOWHERE, House, State, World
from agentgym.envs.interfaces import Interface
from agentgym.envs.since_reset import SinceReset
from agentgym.types import Message, Task


class HouseholdEnv(CommandEnv):
    """Do household tasks in an ALFWorld-like text environment, generated from a seed.

    A task has one room with furniture and objects, and one of ALFWorld's six task types. Texts and rules are
    ALFWorld's. The outcome is 1.0 when the task is done; there is no other reward.

    Args:
        num_receptacles: number of receptacles (furniture to search), 3 to 30.
        num_objects: number of objects in the room, including a lamp, 3 to 60.
        task_types: task types, from :data:`~agentgym.envs.household.vocabulary.TASK_TYPES`.
        rooms: kinds of rooms: kitchen, living room, bedroom, bathroom.
        max_turns: turns after which an episode is truncated.
        interface: ``tools`` for tool calls, ``text`` for ALFWorld's commands as free text.

    Raises:
        UsageError: a value is out of range; the message says what is allowed.

    Example:
        >>> env = HouseholdEnv(task_types=("pick_and_place_simple",))
        >>> observation, info = env.reset(seed=0)
        >>> while not env.step(env.oracle())[2]:
        ...     pass
    """

    world = SinceReset[World]()
    """World of the current episode."""

    def __init__(
        self,
        *,
        num_receptacles: int = 8,
        num_objects: int = 8,
        task_types: Sequence[str] = TASK_TYPES,
        rooms: Sequence[str] = tuple(ROOMS),
        max_turns: int = 30,
        interface: Interface = "tools",
        render_mode: str | None = None,
    ) -> None:
        self.difficulty = Difficulty(num_receptacles, num_objects, task_types, rooms)
        super().__init__(interface=interface, max_turns=max_turns, render_mode=render_mode)

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> str:
        difficulty = Difficulty.from_data(task.data) if task.data else self.difficulty
        self.world = generate(task.seed, task.split, difficulty)
        return self.world.introduction()

    def execute(self, command: Command) -> str | None:
        world = self.world
        said = world.act(command)
        if said is not None and world.is_won():
            self.finish(1.0)
        return said

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    @property
    def task_type(self) -> str:
        """Type of the task."""
        return self.world.house.goal.task_type

    def tasks(self, split: str) -> Sequence[Task]:
        """Return 1,000,000 tasks for training, 1,000 for validation or 1,000 for testing. No world is in two splits."""
        return SeededTasks(split, 1_000_000 if split == "train" else 1_000, self.difficulty.as_data())

    def state_key(self) -> str:
        return self.world.key()

    def dump_state(self) -> tuple[House, State]:
        return self.world.house, self.world.dump()

    def load_state(self, state: tuple[House, State]) -> None:
        house, changing = state
        self.world = World(house, [])
        self.world.load(changing)

    def oracle(self) -> Message:
        return self.message_of(next_command(self.world))

    def admissible_actions(self) -> tuple[str, ...]:
        """Return all commands that are possible in this state, sorted, as ALFWorld lists them; ``help`` is no tool."""
        return tuple(sorted(format_command(command) for command in _possible(self.world, self.interface == "text")))


def _possible(world: World, with_help: bool) -> Iterator[Command]:
    house, here, held = world.house, world.agent, world.held
    yield from (Command(name) for name in (("look", "inventory", "help") if with_help else ("look", "inventory")))
    yield from (Command("go_to", name) for place, name in enumerate(house.receptacles) if place != here)
    if held != NOWHERE:
        yield Command("examine", house.objects[held])
    if here == NOWHERE:
        return
    place = house.receptacles[here]
    yield Command("examine", place)
    if house.can_open[here]:
        yield Command("close_receptacle" if world.is_accessible(here) else "open_receptacle", place)
    for thing, name in enumerate(house.objects):
        if world.can_take(thing):
            yield Command("take", name, place)
        if house.object_types[thing] in LAMPS and world.places[thing] == here:
            yield Command("use", name)
    if held != NOWHERE:
        name = house.objects[held]
        if world.is_accessible(here) and world.fits(held, here):
            yield Command("move", name, place)
        yield from (Command(process, name, place) for process in APPLIANCES if world.can_process(process, held, here))


# --------------------------------------- the gold policy, which searches and uses only what it has observed It is a
# function of the world's state and of which receptacles were shown, so it goes on sensibly from anywhere: it puts down
# what it does not need, processes a target that was cooled instead of heated, opens what was closed again.


def next_command(world: World) -> Command:
    """Return the gold policy's next command in a world that is not won yet."""
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
    """Bring both objects to the same receptacle: the one of the right type that already holds most of them."""
    house = world.house
    options = _of_type(world, house.goal.place)
    known = [world.places[thing] for thing in house.targets if _is_known(world, thing)]
    destination = max(options, key=lambda place: (known.count(place), place == world.agent))
    if world.held != NOWHERE:
        return _put(world, destination)
    return _fetch(world, None, destination)


def _fetch(world: World, process: str | None, leave: int = NOWHERE) -> Command:
    """Take a target that is known to be outside ``leave``, else search for one."""
    things = [thing for thing in world.house.targets if _is_known(world, thing) and world.places[thing] != leave]
    if not things:
        kind = world.house.goal.object_type
        return _search(world, [at for at, place in enumerate(world.house.receptacle_types) if kind in CAN_HOLD[place]])
    thing = max(things, key=lambda t: (process is not None and world.is_processed(process, t), _is_here(world, t)))
    place = world.places[thing]
    return _at(world, place) or _opened(world, place) or _command(world, "take", place, thing)


def _search(world: World, places: Iterable[int]) -> Command:
    """Look into the next unseen receptacle, in the order of the first observation."""
    unseen = [place for place in places if not world.seen >> place & 1]
    place = _nearest(world, unseen)
    return _at(world, place) or _opened(world, place) or Command("examine", world.house.receptacles[place])


def _put(world: World, place: int) -> Command:
    return _at(world, place) or _opened(world, place) or _command(world, "move", place)


def _put_down(world: World) -> Command:
    """Put the held object into the nearest receptacle that can hold it, preferably an open one."""
    places = [place for place in range(len(world.house.receptacles)) if world.fits(world.held, place)]
    accessible = [place for place in places if world.is_accessible(place) and world.seen >> place & 1]
    return _put(world, _nearest(world, accessible or places))


def _at(world: World, place: int) -> Command | None:
    """Return the command to go to a receptacle, or None if the agent is there."""
    return None if world.agent == place else Command("go_to", world.house.receptacles[place])


def _opened(world: World, place: int) -> Command | None:
    """Return the command to open the agent's receptacle, or None if it need not be opened."""
    return None if world.is_accessible(place) else Command("open_receptacle", world.house.receptacles[place])


def _command(world: World, name: str, place: int, thing: int | None = None) -> Command:
    return Command(name, world.house.objects[world.held if thing is None else thing], world.house.receptacles[place])


def _is_known(world: World, thing: int) -> bool:
    """Return True if the object is in a receptacle that the agent has seen. (It moves objects only to seen
    receptacles.)
    """
    place = world.places[thing]
    return place != NOWHERE and bool(world.seen >> place & 1)


def _is_here(world: World, thing: int) -> bool:
    return world.places[thing] == world.agent


def _nearest(world: World, places: list[int]) -> int:
    """Return the agent's own place if it is among the places, else the first."""
    return world.agent if world.agent in places else places[0]


def _of_type(world: World, kind: str) -> list[int]:
    return [place for place, found in enumerate(world.house.receptacle_types) if found == kind]
