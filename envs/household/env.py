"""``agentgym/Household-v0``: keep house by tool calls or text commands in a generated, ALFWorld-like world."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentgym.env.tasks import SeededTasks
from agentgym.envs.household.commands import Command, format_command
from agentgym.envs.household.generator import Difficulty, generate
from agentgym.envs.household.interface import CommandEnv
from agentgym.envs.household.planner import next_command
from agentgym.envs.household.vocabulary import APPLIANCES, LAMPS, ROOMS, TASK_TYPES
from agentgym.envs.household.world import NOWHERE, House, State, World
from agentgym.envs.interfaces import Interface
from agentgym.envs.since_reset import SinceReset
from agentgym.types import Message, Task


class HouseholdEnv(CommandEnv):
    """Keep house by tool calls: an ALFWorld-like text world, generated from a seed.

    One room, its furniture, things in and on it, and one of ALFWorld's six kinds of errand. Texts and rules are
    ALFWorld's. The outcome is 1.0 when the errand is done; there is no other reward.

    Args:
        num_receptacles: pieces of furniture to search, 3 to 30.
        num_objects: things in the room, a lamp included, 3 to 60.
        task_types: which errands there are, of :data:`~agentgym.envs.household.vocabulary.TASK_TYPES`.
        rooms: which kinds of room there are: kitchen, living room, bedroom, bathroom.
        max_turns: turns after which an episode is truncated.
        interface: ``tools`` for tool calls, ``text`` for ALFWorld's commands as free text.

    Raises:
        UsageError: if a value is out of range; the message says what is allowed.

    Example:
        >>> env = HouseholdEnv(task_types=("pick_and_place_simple",))
        >>> observation, info = env.reset(seed=0)
        >>> while not env.step(env.oracle())[2]:
        ...     pass
    """

    world = SinceReset[World]()
    """The world of the current episode."""

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

    # ----------------------------------------------------------------------------------------- beside gymnasium's

    @property
    def task_type(self) -> str:
        """The kind of errand."""
        return self.world.house.goal.task_type

    def tasks(self, split: str) -> Sequence[Task]:
        """1,000,000 tasks to train on, 1,000 to validate, 1,000 to test; no world is in two splits."""
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
        """Every command that is possible now, sorted, as ALFWorld lists them; ``help`` is no tool."""
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
