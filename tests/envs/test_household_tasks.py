"""The household's tasks: splits that share no world, determinism, difficulty, snapshots."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

from agentgym.env.env import Snapshot
from agentgym.envs.household.env import HouseholdEnv
from agentgym.errors import UnknownNameError, UsageError
from agentgym.registry import make
from agentgym.types import Task


def household(**kwargs: Any) -> HouseholdEnv:
    env = make("agentgym/Household-v0", **kwargs)
    assert isinstance(env, HouseholdEnv)
    return env


def test_splits_are_large_and_their_ids_differ() -> None:
    env = household()
    assert len(env.tasks("train")) == 1_000_000
    assert len(env.tasks("valid")) == len(env.tasks("test")) == 1_000
    tasks = [env.tasks(split)[0] for split in ("train", "valid", "test")]
    assert len({task.id for task in tasks}) == len({task.content_hash for task in tasks}) == 3
    assert [task.id for task in env.tasks("test")[998:]] == ["test-998", "test-999"]
    with pytest.raises(UnknownNameError, match="valid"):
        env.tasks("vaild")
    with pytest.raises(UnknownNameError, match="split"):
        env.reset(options={"task": Task(id="x", split="dev", seed=0)})


@pytest.mark.parametrize("knobs", [{}, {"num_receptacles": 3, "num_objects": 3}])
def test_no_world_is_in_two_splits(knobs: dict[str, int]) -> None:
    env = household(**knobs)

    def fingerprints(split: str, num_tasks: int) -> set[str]:
        tasks = env.tasks(split)
        found = set()
        for index in range(num_tasks):
            env.reset(options={"task": tasks[index]})
            found.add(env.state_key())
        return found

    train, valid, test = fingerprints("train", 20_000), fingerprints("valid", 1_000), fingerprints("test", 1_000)
    assert not train & valid and not train & test and not valid & test
    if not knobs:
        assert len(valid) == len(test) == 1_000
        assert len(train) > 19_990


def test_a_task_is_the_same_in_an_environment_of_another_difficulty() -> None:
    small, large = household(num_receptacles=4, num_objects=4), household(num_receptacles=20, num_objects=30)
    task = small.tasks("train")[5]
    assert small.reset(options={"task": task}) == large.reset(options={"task": task})
    assert small.state_key() == large.state_key()
    assert task.content_hash != large.tasks("train")[5].content_hash
    large.reset(options={"task": Task(id="x", split="train", seed=5)})
    assert len(large.world.house.receptacles) == 20
    with pytest.raises(UsageError, match="num_receptacles"):
        large.reset(options={"task": Task(id="x", split="train", seed=5, data={"num_rooms": 2})})


def test_the_episode_seed_does_not_change_the_task() -> None:
    env = household()
    one = env.reset(seed=1, options={"task": 7})
    assert env.reset(seed=2, options={"task": 7}) == one
    assert env.reset(options={"task": 8}) != one


_PRINT_RUN = """
import hashlib
from agentgym.registry import make
env = make("agentgym/Household-v0", num_objects=10)
digest = hashlib.sha256()
for split in ("train", "valid", "test"):
    for index in range(40):
        env.reset(options={"task": index, "split": split})
        done = False
        while not done:
            digest.update((env.state_key() + str(env.admissible_actions())).encode())
            observation, _, done, _, _ = env.step(env.oracle())
            digest.update(observation[0].text.encode())
print(digest.hexdigest())
"""


def test_processes_agree() -> None:
    def run(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", _PRINT_RUN], env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert run("1") == run("2") != ""


@pytest.mark.parametrize("task_type", ["look_at_obj_in_light", "pick_two_obj_and_place"])
def test_difficulty_is_what_was_asked_for(task_type: str) -> None:
    env = household(num_receptacles=5, num_objects=4, task_types=[task_type])
    for index in range(50):
        env.reset(options={"task": index})
        house = env.world.house
        assert (len(house.receptacles), len(house.objects)) == (5, 4)
        assert house.goal.task_type == task_type


def test_all_task_types_and_wordings_occur() -> None:
    env = household()
    seen = set()
    for index in range(300):
        env.reset(options={"task": index})
        goal = env.world.house.goal
        seen.add((goal.task_type, goal.wording))
    assert len(seen) == 12


# -------------------------------------------------------------------------------------------------------- snapshots


@pytest.mark.parametrize("is_pickled", [False, True])
def test_a_snapshot_returns_to_the_state_and_to_what_was_seen(is_pickled: bool) -> None:
    env, other = household(), household()
    env.reset(options={"task": 11})
    for _ in range(3):
        env.step(env.oracle())
    snapshot: Snapshot = env.snapshot()
    assert snapshot.native is not None
    rest = []
    done = False
    while not done:
        action = env.oracle()
        observation, _, done, _, _ = env.step(action)
        rest.append((action, observation))
    for target in (env, other):
        target.restore(pickle.loads(pickle.dumps(snapshot)) if is_pickled else snapshot)
        assert target.state_key() == snapshot.state_key
        again = []
        for _ in rest:
            action = target.oracle()
            again.append((action, target.step(action)[0]))
        assert again == rest


def test_a_snapshot_can_also_be_replayed() -> None:
    env = household()
    env.reset(options={"task": 11})
    for _ in range(4):
        env.step(env.oracle())
    native = env.snapshot()
    replayed = Snapshot(task=native.task, seed=native.seed, actions=native.actions, state_key=native.state_key)
    household().restore(replayed)


def test_rooms_can_be_chosen() -> None:
    env = household(rooms=("bathroom",), task_types=("pick_and_place_simple",))
    for task in env.tasks("train")[:50]:
        env.reset(options={"task": task})
        assert {"bed", "fridge", "sofa"}.isdisjoint(env.world.house.receptacle_types)
