"""The gold policy searches with what it has seen, and always gets there."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from agentgym.envs.household.env import HouseholdEnv
from agentgym.envs.household.vocabulary import TASK_TYPES
from agentgym.envs.household.world import NOWHERE
from agentgym.types import Task, ToolCall


def play(env: HouseholdEnv, task: Task | int, split: str = "train") -> tuple[bool, list[str]]:
    """One episode of the gold policy: whether it won, and what it did."""
    env.reset(options={"task": task, "split": split})
    actions = []
    while True:
        action = env.oracle()
        actions.append(action.text)
        _, _, terminated, truncated, info = env.step(action)
        assert info["is_valid"], actions
        if terminated or truncated:
            return bool(info["success"]), actions


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_it_wins_a_thousand_tasks_by_default(split: str) -> None:
    env = HouseholdEnv()
    lengths = Counter[int]()
    for index in range(1_000):
        won, actions = play(env, index, split)
        assert won, index
        lengths[len(actions)] += 1
    mean = sum(length * count for length, count in lengths.items()) / 1_000
    assert max(lengths) <= 25
    assert 7 < mean < 11


@pytest.mark.parametrize("task_type", TASK_TYPES)
@pytest.mark.parametrize(
    "knobs",
    [
        {"num_receptacles": 3, "num_objects": 3},
        {"num_receptacles": 3, "num_objects": 60},
        {"num_receptacles": 30, "num_objects": 60, "max_turns": 80},
    ],
)
def test_it_wins_at_any_difficulty(task_type: str, knobs: dict[str, Any]) -> None:
    env = HouseholdEnv(task_types=(task_type,), **knobs)
    for index in range(60):
        assert play(env, index)[0], index


@pytest.mark.parametrize("interface", ["tools", "text"])
def test_it_goes_on_from_anywhere(interface: Any) -> None:
    env = HouseholdEnv(max_turns=150, interface=interface)
    rng = np.random.default_rng(0)
    for index in range(300):
        env.reset(options={"task": index})
        is_over = False
        num_random = 0
        while not is_over:
            if num_random < 25 and rng.random() < 0.5:
                actions = env.admissible_actions()
                action = env.parse_action(actions[int(rng.integers(len(actions)))])
                num_random += 1
            else:
                action = env.oracle()
            _, _, terminated, truncated, info = env.step(action)
            assert info["is_valid"]
            is_over = terminated or truncated
        assert info["success"], index


def test_its_messages_have_text_and_calls() -> None:
    env = HouseholdEnv()
    env.reset(options={"task": 0})
    first = env.world.house.receptacles[0]
    action = env.oracle()
    assert action.text == f"go_to: {first}"
    assert action.calls == (ToolCall("go_to", {"receptacle": first}, "0"),)
    env = HouseholdEnv(interface="text")
    env.reset(options={"task": 0})
    assert (env.oracle().text, env.oracle().calls) == (f"go to {first}", ())


def test_it_uses_only_what_it_was_shown() -> None:
    """In two worlds that look alike so far it does the same, wherever the unseen things are."""
    env, other = HouseholdEnv(), HouseholdEnv()
    num_compared = 0
    for index in range(200):
        env.reset(options={"task": index})
        other.restore(env.snapshot())
        world, twin = env.world, other.world
        hidden = [
            (thing, place)
            for thing in range(len(world.places))
            for place in range(len(world.house.receptacles))
            if twin.fits(thing, place) and place != world.places[thing]
        ]
        thing, place = hidden[index % len(hidden)]
        twin.places[thing] = place
        while not world.seen & (1 << place | 1 << world.places[thing]) and world.held == NOWHERE:
            action = env.oracle()
            assert action == other.oracle()
            num_compared += 1
            if world.places[thing] == NOWHERE or env.step(action)[0] != other.step(action)[0]:
                break
    assert num_compared > 300
