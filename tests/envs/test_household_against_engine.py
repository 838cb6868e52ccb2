"""The household against ALFWorld's own engine: the same worlds, the same commands, the same answers.

The engine's games are made of the household's worlds and the PDDL domain and grammar that ALFWorld's package brings.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym.envs.adapters.alfworld import ALFWorldEnv
from agentgym.envs.household.env import HouseholdEnv
from agentgym.envs.household.vocabulary import CAN_HOLD, LAMPS, PROCESSABLE, TASK_TYPES
from agentgym.envs.household.world import World

HAS_ENGINE = all(importlib.util.find_spec(name) is not None for name in ("alfworld", "textworld"))
pytestmark = [pytest.mark.alfworld, pytest.mark.skipif(not HAS_ENGINE, reason="needs the extra alfworld")]

IMPOSSIBLE_FORMS = (
    "take {0} from {1}",
    "move {0} to {1}",
    "put {0} in/on {1}",
    "heat {0} with {1}",
    "cool {0} with {1}",
    "clean {0} with {1}",
    "use {0}",
    "examine {0}",
    "examine {1}",
    "open {1}",
    "close {1}",
    "go to {0}",
    "hop",
)


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_the_household_answers_as_the_engine_does(task_type: str, tmp_path: Path) -> None:
    household = HouseholdEnv(num_receptacles=7, num_objects=9, task_types=(task_type,), max_turns=400, interface="text")
    num_possible = 0
    for index in range(2):
        first, _ = household.reset(options={"task": index})
        write_game(household.world, tmp_path / f"{index}" / "game")
        engine = ALFWorldEnv(data_dir=tmp_path / f"{index}", max_turns=400, interface="text")
        assert engine.reset(options={"task": 0})[0] == first
        num_possible += compare(household, engine, np.random.default_rng(index))
        engine.close()
    assert num_possible > 40


def compare(household: HouseholdEnv, engine: ALFWorldEnv, rng: np.random.Generator) -> int:
    """Play both with random commands and then the gold policy's; the number of commands that were possible."""
    house = household.world.house
    num_possible, num_turns = 0, 0
    while True:
        possible = [line for line in engine.admissible_actions() if not line.startswith("slice ")]
        assert list(household.admissible_actions()) == possible
        line = household.oracle().text
        if num_turns < 45:
            line = possible[int(rng.integers(len(possible)))]
            if rng.random() < 0.3:
                line = impossible(house.objects, house.receptacles, rng)
        num_turns += 1
        ours, theirs = household.step(line), engine.step(line)
        if line == "help":  # the household has nothing to slice
            kept = [row for row in theirs[0][0].text.splitlines() if "slice" not in row]
            assert ours[0][0].text.splitlines() == kept
        else:
            assert ours[0] == theirs[0], line
        assert ours[1:] == theirs[1:], line
        num_possible += bool(ours[4]["is_valid"])
        if ours[2]:
            return num_possible


def impossible(objects: list[str], receptacles: list[str], rng: np.random.Generator) -> str:
    """A command of things that there are, mostly not possible now."""
    thing, place = objects[int(rng.integers(len(objects)))], receptacles[int(rng.integers(len(receptacles)))]
    form = IMPOSSIBLE_FORMS[int(rng.integers(len(IMPOSSIBLE_FORMS)))]
    return form.format(thing, place)


def write_game(world: World, folder: Path) -> Path:
    """Write ``game.tw-pddl`` with the world in its present state; every thing keeps its name."""
    package: Any = importlib.import_module("alfworld")
    data = Path(package.__file__).parent / "data"
    game = {
        "pddl_domain": (data / "alfred.pddl").read_text(),
        "grammar": (data / "alfred.twl2").read_text().replace("UNKNOWN GOAL", world.house.goal.sentence),
        "pddl_problem": _problem(world),
        "solvable": True,
        "walkthrough": [],
    }
    folder.mkdir(parents=True)
    path = folder / "game.tw-pddl"
    path.write_text(json.dumps(game))
    return path


def _problem(world: World) -> str:
    house = world.house
    # The engine numbers things of a type downwards in the order of their ids, as the household does.
    receptacles = [_id(kind, index) for index, kind in enumerate(house.receptacle_types)]
    objects = [_id(kind, index) for index, kind in enumerate(house.object_types)]
    receptacle_types, object_types = sorted(set(house.receptacle_types)), sorted(set(house.object_types))
    declared = [
        "agent1 - agent",
        "loc_bar_start - location",
        *(f"loc_bar_{index} - location" for index in range(len(receptacles))),
        *(f"{kind}Type - otype" for kind in object_types),
        *(f"{kind}Type - rtype" for kind in sorted({*receptacle_types, "sinkbasin", "microwave", "fridge"})),
        *(f"{kind}Type - otype" for kind in ("knife", "butterknife") if kind not in object_types),
        *(f"{name} - object" for name in objects),
        *(f"{name} - receptacle" for name in receptacles),
    ]
    facts = ["atLocation agent1 loc_bar_start"]
    for index, (name, kind) in enumerate(zip(receptacles, house.receptacle_types, strict=True)):
        facts += [f"receptacleType {name} {kind}Type", f"receptacleAtLocation {name} loc_bar_{index}"]
        facts += [f"openable {name}"] if house.can_open[index] else []
        facts += [f"opened {name}"] if world.opened >> index & 1 else []
    for name, kind, place in zip(objects, house.object_types, world.places, strict=True):
        facts += [f"objectType {name} {kind}Type", f"inReceptacle {name} {receptacles[place]}"]
        facts += [f"objectAtLocation {name} loc_bar_{place}"]
        abilities = {f"{process}able": types for process, types in PROCESSABLE.items()} | {"toggleable": LAMPS}
        facts += [f"{ability} {name}" for ability, kinds in abilities.items() if kind in kinds]
        facts += [] if kind in LAMPS else [f"pickupable {name}"]
    facts += [f"canContain {r}Type {o}Type" for r in receptacle_types for o in object_types if o in CAN_HOLD[r]]
    lines = "\n".join(f"({fact})" for fact in facts)
    return (
        "(define (problem household)\n(:domain alfred)\n(:objects\n"
        + "\n".join(declared)
        + f"\n)\n(:init\n{lines}\n)\n{_goal(world)}"
    )


def _id(kind: str, index: int) -> str:
    """An id that the engine reads as an instance of this type; basins have their own form in ALFWorld's data."""
    is_basin = kind.endswith("basin")
    return f"{kind.removesuffix('basin')}_bar_{index:03}{'_bar_basin' if is_basin else ''}"


def _goal(world: World) -> str:
    """The goal in ALFWorld's own words, which close the problem's last bracket too."""
    library: Any = importlib.import_module("alfworld.gen.goal_library")
    goal = world.house.goal
    text: str = library.gdict[goal.task_type]["pddl"].format(
        obj=goal.object_type, recep=goal.place, toggle=goal.place, mrecep=""
    )
    return text.replace("#", "-")
