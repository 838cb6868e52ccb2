"""The household's rules: when each command is possible, and when each kind of task is done."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.envs.household.commands import Command, format_command, parse_command
from agentgym.envs.household.generator import Difficulty, generate
from agentgym.envs.household.vocabulary import CAN_HOLD, LAMPS, TASK_TYPES
from agentgym.envs.household.world import NOWHERE, Goal, House, World


def world_of(goal: Goal, receptacles: list[str], things: list[tuple[str, int]]) -> World:
    things = sorted(things)
    return World(House(goal, receptacles, [kind for kind, _ in things]), [place for _, place in things])


def act(world: World, *lines: str) -> str | None:
    """Carry commands out, all but the last of which must be possible; what the last one says."""
    said: str | None = ""
    for line in lines:
        assert said is not None, line
        command = parse_command(line)
        assert command is not None, line
        said = world.act(command)
    return said


def simple() -> World:
    goal = Goal("pick_and_place_simple", "mug", "shelf")
    return world_of(goal, ["cabinet", "desk", "shelf", "stoveburner"], [("mug", 0), ("pen", 1), ("pot", 3)])


@pytest.mark.parametrize(
    "lines",
    [
        ["go to bathtub 1"],
        ["go to mug 1"],
        ["go to desk 1", "go to desk 1"],
        ["open cabinet 1"],
        ["go to desk 1", "open desk 1"],
        ["go to desk 1", "close desk 1"],
        ["go to cabinet 1", "close cabinet 1"],
        ["go to cabinet 1", "open cabinet 1", "open cabinet 1"],
        ["go to cabinet 1", "take mug 1 from cabinet 1"],
        ["take pen 1 from desk 1"],
        ["go to desk 1", "take mug 1 from desk 1"],
        ["go to desk 1", "take pen 1 from cabinet 1"],
        ["go to desk 1", "take pen 2 from desk 1"],
        ["go to desk 1", "take pen 1 from desk 1", "go to stoveburner 1", "take pot 1 from stoveburner 1"],
        ["go to desk 1", "take pen 1 from desk 1", "go to stoveburner 1", "move pen 1 to stoveburner 1"],
        ["go to desk 1", "take pen 1 from desk 1", "go to shelf 1", "move mug 1 to shelf 1"],
        ["go to desk 1", "take pen 1 from desk 1", "move pen 1 to shelf 1"],
        ["go to desk 1", "move pen 1 to desk 1"],
        ["go to stoveburner 1", "take pot 1 from stoveburner 1", "go to cabinet 1", "move pot 1 to cabinet 1"],
        ["go to desk 1", "use pen 1"],
        ["examine desk 1"],
        ["go to desk 1", "examine pen 1"],
        ["go to desk 1", "take pen 1 from desk 1", "heat pen 1 with desk 1"],
    ],
)
def test_impossible_commands_do_nothing(lines: list[str]) -> None:
    world = simple()
    act(world, *lines[:-1])
    before = world.key()
    assert act(world, lines[-1]) is None
    assert world.key() == before


def test_a_thing_may_go_back_to_an_open_receptacle() -> None:
    world = simple()
    act(world, "go to cabinet 1", "open cabinet 1", "take mug 1 from cabinet 1")
    assert world.held != NOWHERE
    before = world.key()
    assert act(world, "move mug 1 to cabinet 1") == "You move the mug 1 to the cabinet 1."
    assert world.held == NOWHERE
    assert act(world, "take mug 1 from cabinet 1") is not None
    assert world.key() == before


def test_simple_is_done_when_the_object_is_there() -> None:
    world = simple()
    act(world, "go to cabinet 1", "open cabinet 1", "take mug 1 from cabinet 1", "go to shelf 1")
    assert not world.is_won()
    act(world, "move mug 1 to shelf 1")
    assert world.is_won()
    act(world, "take mug 1 from shelf 1")
    assert not world.is_won()


@pytest.mark.parametrize(
    ("task_type", "process", "appliance"),
    [
        ("pick_heat_then_place_in_recep", "heat", "microwave"),
        ("pick_cool_then_place_in_recep", "cool", "fridge"),
        ("pick_clean_then_place_in_recep", "clean", "sinkbasin"),
    ],
)
def test_a_process_is_asked_for_and_needs_no_opening(task_type: str, process: str, appliance: str) -> None:
    goal = Goal(task_type, "apple", "countertop")
    world = world_of(goal, ["countertop", "fridge", "microwave", "sinkbasin"], [("apple", 0), ("spoon", 0)])
    assert not world.is_won()
    act(world, "go to countertop 1", "take apple 1 from countertop 1")
    assert act(world, f"{process} apple 1 with {appliance} 1") is None
    act(world, f"go to {appliance} 1", f"{process} apple 1 with {appliance} 1", "go to countertop 1")
    assert not world.is_won()
    act(world, "move apple 1 to countertop 1")
    assert world.is_won()


def test_heat_and_cold_replace_each_other_and_cleanness_stays() -> None:
    goal = Goal("pick_heat_then_place_in_recep", "apple", "countertop")
    world = world_of(goal, ["countertop", "fridge", "microwave", "sinkbasin"], [("apple", 0)])
    act(world, "go to countertop 1", "take apple 1 from countertop 1")
    act(world, "go to sinkbasin 1", "clean apple 1 with sinkbasin 1")
    act(world, "go to microwave 1", "heat apple 1 with microwave 1")
    act(world, "go to fridge 1", "cool apple 1 with fridge 1")
    act(world, "go to countertop 1", "move apple 1 to countertop 1")
    assert not world.is_won()
    assert "apple 1 (clean cool)" in world.key()


def test_only_what_can_be_heated_is() -> None:
    goal = Goal("pick_heat_then_place_in_recep", "apple", "countertop")
    world = world_of(goal, ["countertop", "microwave"], [("apple", 0), ("spoon", 0)])
    act(world, "go to countertop 1", "take spoon 1 from countertop 1", "go to microwave 1")
    assert act(world, "heat spoon 1 with microwave 1") is None


def lit_bedroom() -> World:
    goal = Goal("look_at_obj_in_light", "book", "desklamp")
    return world_of(goal, ["bed", "desk"], [("book", 0), ("desklamp", 1), ("pen", 1)])


def test_light_is_done_by_using_the_lamp_with_the_object_in_hand() -> None:
    world = lit_bedroom()
    act(world, "go to bed 1", "take book 1 from bed 1", "go to desk 1")
    assert not world.is_won()
    act(world, "use desklamp 1")
    assert world.is_won()


def test_light_is_done_by_coming_back_to_a_lamp_that_is_on() -> None:
    world = lit_bedroom()
    act(world, "go to desk 1", "use desklamp 1", "go to bed 1", "take book 1 from bed 1")
    assert not world.is_won()
    act(world, "go to desk 1")
    assert world.is_won()


def test_light_is_not_done_with_another_object() -> None:
    world = lit_bedroom()
    act(world, "go to desk 1", "take pen 1 from desk 1", "use desklamp 1")
    assert not world.is_won()


def test_two_objects_belong_in_the_same_receptacle() -> None:
    goal = Goal("pick_two_obj_and_place", "pen", "shelf")
    world = world_of(goal, ["desk", "shelf", "shelf"], [("pen", 0), ("pen", 0), ("pen", 0), ("watch", 0)])
    act(world, "go to desk 1", "take pen 1 from desk 1", "go to shelf 1", "move pen 1 to shelf 1")
    act(world, "go to desk 1", "take pen 2 from desk 1", "go to shelf 2", "move pen 2 to shelf 2")
    assert not world.is_won()
    act(world, "go to desk 1", "take pen 3 from desk 1", "go to shelf 1", "move pen 3 to shelf 1")
    assert world.is_won()


def test_the_key_does_not_tell_how_a_state_was_reached() -> None:
    one, other = simple(), simple()
    act(one, "go to cabinet 1", "open cabinet 1", "go to desk 1")
    act(other, "go to shelf 1", "look", "go to cabinet 1", "open cabinet 1", "close cabinet 1", "open cabinet 1")
    assert one.key() != other.key()
    act(other, "go to desk 1", "take pen 1 from desk 1", "inventory", "examine pen 1", "move pen 1 to desk 1")
    assert one.key() == other.key()


def test_the_key_tells_everything_that_matters() -> None:
    lines = ["go to cabinet 1", "open cabinet 1", "take mug 1 from cabinet 1", "go to desk 1", "move mug 1 to desk 1"]
    world = simple()
    keys = [world.key()]
    for line in lines:
        act(world, line)
        keys.append(world.key())
    assert len(set(keys)) == len(keys)
    lit = lit_bedroom()
    act(lit, "go to desk 1")
    before = lit.key()
    act(lit, "use desklamp 1")
    assert lit.key() != before


@st.composite
def commands(draw: st.DrawFn) -> Command:
    name = draw(st.sampled_from(["go_to", "open_receptacle", "close_receptacle", "use", "examine"]))
    noun = st.builds("{} {}".format, st.sampled_from(["mug", "desk", "fridge"]), st.integers(1, 9))
    if draw(st.booleans()):
        return Command(name, draw(noun))
    return Command(draw(st.sampled_from(["take", "move", "heat", "clean", "cool"])), draw(noun), draw(noun))


@given(commands())
def test_commands_survive_the_text_form(command: Command) -> None:
    assert parse_command(format_command(command)) == command


@pytest.mark.parametrize("line", ["", " ", "dance", "go", "go fridge 1", "take mug 1", "put in desk 1", "look up"])
def test_other_lines_are_no_commands(line: str) -> None:
    assert parse_command(line) is None


@pytest.mark.parametrize("line", ["put mug 1 in/on desk 1", "put mug 1 in desk 1", "put mug 1 on desk 1"])
def test_put_means_move(line: str) -> None:
    assert parse_command(line) == Command("move", "mug 1", "desk 1")


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**40), st.integers(3, 30), st.integers(3, 60), st.sampled_from(["train", "valid", "test"]))
def test_generated_worlds_are_sound(seed: int, num_receptacles: int, num_objects: int, split: str) -> None:
    world = generate(seed, split, Difficulty(num_receptacles, num_objects))
    house = world.house
    assert len(house.receptacles) == len(set(house.receptacles)) == num_receptacles
    assert len(house.objects) == len(set(house.objects)) == num_objects
    assert house.receptacle_types == sorted(house.receptacle_types)
    assert not world.is_won()
    assert house.goal.task_type in TASK_TYPES
    for kind, place in zip(house.object_types, world.places, strict=True):
        assert kind in LAMPS or kind in CAN_HOLD[house.receptacle_types[place]]
    assert generate(seed, split, Difficulty(num_receptacles, num_objects)).key() == world.key()
