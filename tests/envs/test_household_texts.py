"""The household says what ALFWorld's engine says, letter for letter."""

from __future__ import annotations

import pytest

from agentgym.envs.household.commands import parse_command
from agentgym.envs.household.vocabulary import GOAL_TEMPLATES
from agentgym.envs.household.world import Goal, House, World

HEAT = "pick_heat_then_place_in_recep"


def kitchen(goal: Goal | None = None) -> World:
    """Four receptacles (fridge and microwave closed) and five things."""
    house = House(
        goal or Goal(HEAT, "potato", "garbagecan"),
        ["fridge", "garbagecan", "microwave", "sinkbasin"],
        ["bowl", "bowl", "egg", "potato", "tomato"],
    )
    return World(house, [0, 2, 3, 3, 3])


def bedroom() -> World:
    house = House(Goal("look_at_obj_in_light", "book", "desklamp"), ["bed", "desk", "drawer"], ["book", "desklamp"])
    return World(house, [0, 1])


def transcript(world: World, *lines: str) -> list[str | None]:
    said = []
    for line in lines:
        command = parse_command(line)
        assert command is not None, line
        said.append(world.act(command))
    return said


def test_introduction_lists_everything_from_the_highest_number_down() -> None:
    house = House(Goal(HEAT, "potato", "garbagecan"), ["cabinet", "cabinet", "fridge"], ["potato"])
    assert World(house, [0]).introduction() == (
        "You are in the middle of a room. Looking quickly around you, you see a cabinet 2, a cabinet 1, and a fridge 1."
        "\n\nYour task is to: put a hot potato in garbagecan."
    )


def test_a_kitchen_transcript_reads_as_the_engine_prints_it() -> None:
    world = kitchen()
    script = {
        "look": "You are in the middle of a room. Looking quickly around you, you see nothing.",
        "inventory": "You are not carrying anything.",
        "go to sinkbasin 1": (
            "You arrive at sinkbasin 1. On the sinkbasin 1, you see a egg 1, a potato 1, and a tomato 1."
        ),
        "look ": "You are facing the sinkbasin 1. Next to it, you see nothing.",
        "examine sinkbasin 1": "On the sinkbasin 1, you see a egg 1, a potato 1, and a tomato 1.",
        "examine potato 1": None,
        "take potato 1 from sinkbasin 1": "You pick up the potato 1 from the sinkbasin 1.",
        "inventory ": "You are carrying: a potato 1.",
        "examine  potato 1": "There's nothing special about potato 1.",
        "clean potato 1 with sinkbasin 1": "You clean the potato 1 using the sinkbasin 1.",
        "examine potato  1": "This is a clean potato 1.",
        "go to microwave 1": "You arrive at microwave 1. The microwave 1 is closed.",
        "heat potato 1 with microwave 1": "You heat the potato 1 using the microwave 1.",
        "examine potato 1 ": "This is a hot and clean potato 1.",
        "open microwave 1": "You open the microwave 1. The microwave 1 is open. In it, you see a bowl 1.",
        "move potato 1 to microwave 1": "You move the potato 1 to the microwave 1.",
        "examine microwave 1": "The microwave 1 is open. In it, you see a bowl 1, and a potato 1.",
        " examine potato 1": None,
        " take potato 1 from microwave 1": "You pick up the potato 1 from the microwave 1.",
        "close microwave 1": "You close the microwave 1.",
        " close microwave 1": None,
        "go to fridge 1": "You arrive at fridge 1. The fridge 1 is closed.",
        "cool potato 1 with fridge 1": "You cool the potato 1 using the fridge 1.",
        "  examine potato 1": "This is a cool and clean potato 1.",
        "open fridge 1": "You open the fridge 1. The fridge 1 is open. In it, you see a bowl 2.",
    }
    assert dict(zip(script, transcript(world, *script), strict=True)) == script


def test_one_state_reads_alone() -> None:
    world = kitchen()
    transcript(world, "go to sinkbasin 1", "take potato 1 from sinkbasin 1", "go to fridge 1")
    assert transcript(world, "cool potato 1 with fridge 1", "examine potato 1")[1] == "This is a cold potato 1."
    transcript(world, "go to microwave 1", "heat potato 1 with microwave 1")
    assert transcript(world, "examine potato 1") == ["This is a hot potato 1."]


def test_a_lamp_transcript_reads_as_the_engine_prints_it() -> None:
    world = bedroom()
    script = {
        "use desklamp 1": None,
        "go to desk 1": "You arrive at desk 1. On the desk 1, you see a desklamp 1.",
        "examine desklamp 1": None,
        "take desklamp 1 from desk 1": None,
        " use desklamp 1": "You turn on the desklamp 1.",
        "use  desklamp 1": "You turn on the desklamp 1.",
        "go to drawer 1": "You arrive at drawer 1. The drawer 1 is closed.",
        "open drawer 1": "You open the drawer 1. The drawer 1 is open. In it, you see nothing.",
        "examine drawer 1": "The drawer 1 is open. In it, you see nothing.",
    }
    assert dict(zip(script, transcript(world, *script), strict=True)) == script


@pytest.mark.parametrize(
    ("task_type", "place", "sentences"),
    [
        ("pick_and_place_simple", "desk", ("put a mug in desk", "put some mug on desk")),
        ("look_at_obj_in_light", "desklamp", ("look at mug under the desklamp", "examine the mug with the desklamp")),
        ("pick_clean_then_place_in_recep", "shelf", ("put a clean mug in shelf", "clean some mug and put it in shelf")),
        (HEAT, "shelf", ("put a hot mug in shelf", "heat some mug and put it in shelf")),
        ("pick_cool_then_place_in_recep", "shelf", ("put a cool mug in shelf", "cool some mug and put it in shelf")),
        ("pick_two_obj_and_place", "desk", ("put two mug in desk", "find two mug and put them in desk")),
    ],
)
def test_goals_read_in_two_ways(task_type: str, place: str, sentences: tuple[str, str]) -> None:
    assert tuple(Goal(task_type, "mug", place, wording).sentence for wording in (0, 1)) == sentences
    assert len(GOAL_TEMPLATES) == 6


def test_help_lists_the_commands() -> None:
    (said,) = transcript(kitchen(), "help")
    assert said is not None
    assert said.startswith(
        "Available commands:\n  look:                             look around your current location\n"
    )
    assert "  take (object) from (receptacle):  take an object from a receptacle\n" in said
