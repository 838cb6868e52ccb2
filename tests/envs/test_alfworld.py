"""The adapter to ALFWorld: with a scripted engine everywhere, with the real one where it and its games are."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentgym import errors
from agentgym.envs.adapters import alfworld as adapter
from agentgym.envs.adapters.alfworld import DATA_VARIABLE, ALFWorldEnv
from agentgym.envs.household.commands import TOOLS
from agentgym.envs.household.env import HouseholdEnv
from agentgym.envs.household.vocabulary import TASK_TYPES
from agentgym.errors import (
    CorruptDataError,
    EnvError,
    EnvTimeoutError,
    MissingExtraError,
    ResetNeededError,
    UnknownNameError,
    UsageError,
)
from agentgym.types import Message, Task, ToolCall

HAS_ENGINE = all(importlib.util.find_spec(name) is not None for name in ("alfworld", "textworld"))
SHARED = Path(os.environ.get("AGENTGYM_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
GAMES = SHARED / "alfworld"

needs_games = pytest.mark.skipif(
    not (HAS_ENGINE and GAMES.is_dir()), reason="needs the extra alfworld and the games in AGENTGYM_SHARED_DATA"
)

# ------------------------------------------------------------------------------------------------ a scripted engine

SCRIPTED = """
import json, sys, time
from pathlib import Path

place, path, num_loads, has_plan = "start", "", 0, True
for line in sys.stdin:
    request = json.loads(line)
    said = "Nothing happens."
    if request["op"] == "start":
        num_loads += request["path"] != path
        place, path = "start", request["path"]
        game = json.loads(Path(path).read_text())
        said = "You are in the middle of a room."
    elif request["op"] == "step":
        command = request["command"]
        if command == "crash":
            sys.exit(3)
        if command == "hang":
            time.sleep(60)
        if command == "look":
            said = "You see nothing."
        if command.startswith("go to ") and command[6:] != place:
            place, said = command[6:], "You arrive."
        if command == "move egg 1 to desk 1":
            place, said = "won", "You move the egg 1 to the desk 1."
    elif request["op"] == "plan":
        plan = [] if place == "trap 1" else ["go to desk 1"] * (place != "desk 1") + ["move egg 1 to desk 1"]
        print(json.dumps({"plan": plan}), flush=True)
        continue
    answer = {"said": said, "won": place == "won", "key": place, "admissible": ["help", "look", "slice egg 1 with x"]}
    if request["op"] == "start":
        answer |= {"num_loads": num_loads, "walkthrough": game["walkthrough"]}
    print(json.dumps(answer), flush=True)
"""

WALKTHROUGH = ["look", "help", "go to bed 1", "go to desk 1", "move egg 1 to desk 1"]


def add_game(folder: Path, **changes: Any) -> None:
    folder.mkdir(parents=True)
    game = {"solvable": True, "walkthrough": WALKTHROUGH, **changes}
    (folder / "game.tw-pddl").write_text(json.dumps(game))


@pytest.fixture
def games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder in the official layout, and an engine that is a script."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "scripted_engine.py").write_text(SCRIPTED)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.setattr(adapter, "_WORKER", "scripted_engine")
    monkeypatch.setattr(errors, "_is_installed", lambda module: True)
    root = tmp_path / "data"
    add_game(root / "train" / "pick_and_place_simple-Egg-None-Desk-1" / "trial_1")
    add_game(root / "train" / "pick_heat_then_place_in_recep-Egg-None-Desk-1" / "trial_2")
    add_game(root / "train" / "pick_and_place_simple-Egg-None-Desk-1" / "trial_3", solvable=False)
    add_game(root / "train" / "pick_and_place_with_movable_recep-Egg-Bowl-Desk-1" / "trial_4")
    add_game(root / "train" / "pick_heat_then_place_in_recep-AppleSliced-None-Desk-1" / "trial_5")
    add_game(root / "valid_seen" / "look_at_obj_in_light-Egg-None-DeskLamp-1" / "trial_6")
    add_game(root / "valid_unseen" / "mine" / "trial_7")
    (root / "valid_unseen" / "mine" / "trial_7" / "traj_data.json").write_text(
        '{"task_type": "pick_two_obj_and_place"}'
    )
    return root


def scripted(games: Path, **kwargs: Any) -> ALFWorldEnv:
    return ALFWorldEnv(data_dir=games, **kwargs)


def test_splits_are_folders_and_games_are_playable_ones(games: Path) -> None:
    env = scripted(games)
    assert [task.id for task in env.tasks("train")] == [
        "train/pick_and_place_simple-Egg-None-Desk-1/trial_1",
        "train/pick_heat_then_place_in_recep-Egg-None-Desk-1/trial_2",
    ]
    (valid,), (test,) = env.tasks("valid"), env.tasks("test")
    assert valid.data == {
        "path": "valid_seen/look_at_obj_in_light-Egg-None-DeskLamp-1/trial_6/game.tw-pddl",
        "task_type": "look_at_obj_in_light",
    }
    assert test.data["task_type"] == "pick_two_obj_and_place"
    assert (valid.split, test.split) == ("valid", "test")
    with pytest.raises(UnknownNameError, match="split"):
        env.tasks("valid_seen")


def test_the_official_release_and_loose_games_are_found_too(games: Path, tmp_path: Path) -> None:
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "json_2.1.1").symlink_to(games)
    env = scripted(tmp_path / "release")
    assert [len(env.tasks(split)) for split in ("train", "valid", "test")] == [2, 1, 1]
    loose = scripted(games / "valid_seen")
    assert [len(loose.tasks(split)) for split in ("train", "valid", "test")] == [1, 0, 0]


def test_a_list_of_games_is_the_split_for_testing(games: Path, tmp_path: Path) -> None:
    whole = scripted(games).tasks("train")
    path = str(whole[0].data["path"])
    listed = tmp_path / "new_std.json"
    listed.write_text(json.dumps({"pick_and_place": [path]}))
    env = ALFWorldEnv(data_dir=games, games=listed)
    assert [task.data["path"] for task in env.tasks("test")] == [path] and not env.tasks("train")
    listed.write_text(json.dumps({"pick_and_place": ["json_2.1.1/valid_unseen/gone/game.tw-pddl"]}))
    with pytest.raises(UsageError, match=r"has no game json_2\.1\.1/valid_unseen/gone"):
        ALFWorldEnv(data_dir=games, games=listed)
    listed.write_text("[1]")
    with pytest.raises(CorruptDataError, match="games by kind"):
        ALFWorldEnv(data_dir=games, games=listed)
    with pytest.raises(UsageError, match="no file"):
        ALFWorldEnv(data_dir=games, games=tmp_path / "gone.json")


def test_the_same_game_is_loaded_once(games: Path) -> None:
    env = scripted(games)
    counts = []
    for index in (0, 0, 1, 1, 0):
        env.reset(options={"task": index})
        counts.append(env.num_loads)
    env.close()
    assert counts == [1, 1, 2, 2, 3]


def test_tools_are_the_households_and_answers_are_results(games: Path) -> None:
    env = scripted(games)
    assert env.tools is TOOLS and env.tools == HouseholdEnv().tools
    env.reset(options={"task": 0})
    calls = (ToolCall("go_to", {"receptacle": "bed 1"}, "a"), ToolCall("fly", {}, "b"), ToolCall("open_receptacle"))
    observation, _, _, _, info = env.step(Message("assistant", "", calls))
    assert [message.text.split(".")[0] for message in observation] == [
        "You arrive",
        "Error: unknown tool 'fly'",
        "Error: missing receptacle",
    ]
    assert not info["is_valid"]
    assert env.admissible_actions() == ("look",)
    env.close()


def test_text_goes_to_the_engine_and_put_means_move(games: Path) -> None:
    env = scripted(games, interface="text")
    env.reset(options={"task": 0})
    assert env.admissible_actions() == ("help", "look", "slice egg 1 with x")
    assert env.step("slice egg 1 with x")[4]["is_valid"] is False
    observation, reward, terminated, _, info = env.step("put egg 1 in/on desk 1")
    assert observation[0].text == "You move the egg 1 to the desk 1."
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    env.close()


def oracle_texts(env: ALFWorldEnv) -> list[str]:
    texts = []
    while True:
        texts.append(env.oracle().text)
        if env.step(env.oracle())[2]:
            return texts


def test_the_oracle_follows_the_walkthrough(games: Path) -> None:
    env = scripted(games, interface="text")
    env.reset(options={"task": 0})
    assert oracle_texts(env) == ["look", "go to bed 1", "go to desk 1", "move egg 1 to desk 1"]
    env.close()


def test_the_oracle_stays_on_track_while_nothing_changes(games: Path) -> None:
    env = scripted(games, interface="text")
    env.reset(options={"task": 0})
    for line in ("look", "look", "dance"):
        env.step(line)
    assert oracle_texts(env) == ["go to bed 1", "go to desk 1", "move egg 1 to desk 1"]
    env.close()


def test_the_oracle_plans_when_it_is_off_the_track(games: Path) -> None:
    env = scripted(games)
    env.reset(options={"task": 0})
    env.step("go to sofa 1")
    assert oracle_texts(env) == ["go_to: desk 1", "move: egg 1; desk 1"]
    env.reset(options={"task": 0})
    env.step("go to trap 1")
    with pytest.raises(UsageError, match="no plan"):
        env.oracle()
    env.close()


def test_a_walkthrough_too_long_for_the_turns_is_not_followed(games: Path) -> None:
    env = scripted(games, max_turns=3)
    env.reset(options={"task": 0})
    assert oracle_texts(env) == ["go_to: desk 1", "move: egg 1; desk 1"]
    env.close()


def test_a_dead_engine_is_an_env_error_and_the_next_episode_has_a_new_one(games: Path) -> None:
    env = scripted(games, interface="text")
    env.reset(options={"task": 0})
    with pytest.raises(EnvError, match="exit code 3"):
        env.step("crash")
    env.reset(options={"task": 0})
    pid = env.worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EnvError, match="exit code -9"):
        env.step("look")
    env.reset(options={"task": 0})
    assert env.step("look")[4]["is_valid"]
    env.close()


def test_a_hung_engine_is_a_timeout(games: Path) -> None:
    env = scripted(games, interface="text", step_timeout_s=0.3)
    env.reset(options={"task": 0})
    with pytest.raises(EnvTimeoutError, match=r"0\.3 s"):
        asyncio.run(env.astep("hang"))
    env.reset(options={"task": 0})
    env.close()


def test_bad_arguments_are_refused(games: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    with pytest.raises(UsageError, match=f"set {DATA_VARIABLE}"):
        ALFWorldEnv()
    monkeypatch.setenv(DATA_VARIABLE, str(games))
    env = ALFWorldEnv()
    assert len(env.tasks("train")) == 2
    with pytest.raises(ResetNeededError):
        env.state_key()
    with pytest.raises(UsageError, match="no game"):
        env.reset(options={"task": Task(id="x", split="train", seed=0)})
    with pytest.raises(UsageError, match="does not exist"):
        ALFWorldEnv(data_dir=games / "nowhere")
    with pytest.raises(UsageError, match="interface"):
        ALFWorldEnv(interface="speech")  # type: ignore[arg-type]


def test_a_missing_package_is_reported_as_the_extra(games: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_is_installed", lambda module: False)
    with pytest.raises(MissingExtraError, match=r"\[alfworld\]'"):
        scripted(games)


# --------------------------------------------------------------------------------------------------- the real engine


@pytest.fixture
def real() -> Iterator[ALFWorldEnv]:
    env = ALFWorldEnv(data_dir=GAMES, max_turns=150, interface="text")
    yield env
    env.close()


def game_of(env: ALFWorldEnv, task_type: str) -> Task:
    return next(task for task in env.tasks("train") if task.data["task_type"] == task_type)


@pytest.mark.alfworld
@needs_games
def test_every_recorded_walkthrough_wins(real: ALFWorldEnv) -> None:
    tasks = real.tasks("train")
    assert {task.data["task_type"] for task in tasks} == set(TASK_TYPES)
    for task in tasks:
        observation, _ = real.reset(options={"task": task})
        assert observation[0].text.startswith("You are in the middle of a room. Looking quickly around you, you see a ")
        assert "\n\nYour task is to: " in observation[0].text
        for command in real.walkthrough:
            assert command in real.admissible_actions()
            _, reward, terminated, _, info = real.step(command)
            assert info["is_valid"]
        assert (reward, terminated, info["success"]) == (1.0, True, True), task.id
    assert real.num_loads == len(tasks) == 11


@pytest.mark.alfworld
@needs_games
def test_state_keys_agree_between_processes_and_tell_states_apart(real: ALFWorldEnv) -> None:
    other = ALFWorldEnv(data_dir=GAMES, max_turns=150)
    task = game_of(real, "pick_heat_then_place_in_recep")
    real.reset(options={"task": task})
    other.reset(options={"task": task})
    start = real.state_key()
    assert start == other.state_key()
    real.step("look")
    real.step("inventory")
    assert real.state_key() == start
    keys = [start]
    for command in real.walkthrough[1:-1]:
        real.step(command)
        keys.append(real.state_key())
    assert len(set(keys)) == len(keys)
    for command in ("go to sinkbasin 1", "examine sinkbasin 1", "go to cabinet 1", "open cabinet 1", "close cabinet 1"):
        other.step(command)
    for command in ("go to sinkbasin 1", "take potato 1 from sinkbasin 1"):
        other.step(command)
    assert other.state_key() == keys[2]
    real.reset(options={"task": task})
    assert real.state_key() == start
    assert real.num_loads == 1
    other.close()


@pytest.mark.alfworld
@needs_games
def test_the_real_texts_and_refusals(real: ALFWorldEnv) -> None:
    real.reset(options={"task": game_of(real, "pick_heat_then_place_in_recep")})
    script = {
        "go to sinkbasin 1": (
            "You arrive at sinkbasin 1. On the sinkbasin 1, you see a egg 1, a potato 1, and a tomato 1.",
            True,
        ),
        "examine potato 1": ("Nothing happens.", False),
        "take potato 1 from sinkbasin 1": ("You pick up the potato 1 from the sinkbasin 1.", True),
        "put potato 1 in/on sinkbasin 1": ("You move the potato 1 to the sinkbasin 1.", True),
        "dance": ("Nothing happens.", False),
    }
    for line, (text, is_valid) in script.items():
        observation, _, _, _, info = real.step(line)
        assert (observation[0].text, info["is_valid"]) == (text, is_valid)


@pytest.mark.alfworld
@needs_games
@pytest.mark.parametrize("task_type", ["pick_cool_then_place_in_recep", "look_at_obj_in_light"])
def test_the_engines_planner_takes_over_off_the_track(task_type: str) -> None:
    env = ALFWorldEnv(data_dir=GAMES)
    env.reset(options={"task": game_of(env, task_type)})
    env.step("go to garbagecan 1")
    while True:
        _, _, terminated, _, info = env.step(env.oracle())
        assert info["is_valid"]
        if terminated:
            break
    assert info["success"] and env.turn < 15
    env.close()


@pytest.mark.alfworld
@needs_games
def test_a_snapshot_is_replayed(real: ALFWorldEnv) -> None:
    real.reset(options={"task": game_of(real, "pick_clean_then_place_in_recep")})
    for command in real.walkthrough[:4]:
        real.step(command)
    snapshot = real.snapshot()
    real.step("look")
    real.step("go to garbagecan 1")
    real.restore(snapshot)
    assert real.state_key() == snapshot.state_key
