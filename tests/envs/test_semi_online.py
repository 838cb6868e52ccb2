"""Semi-online worlds: what an action earns beside an expert's, who plays on, and that a changed world is no reward."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentgym.check import check_env
from agentgym.env.env import Env
from agentgym.envs.games.maze import MazeEnv
from agentgym.envs.gui.replay import Recording
from agentgym.envs.semi_online.env import SemiOnlineEnv, compare
from agentgym.envs.semi_online.traces import read_traces, record_traces, write_traces
from agentgym.errors import CorruptDataError, EnvError, ResetNeededError, UnknownNameError, UsageError
from agentgym.registry import make
from agentgym.types import MalformedCall, Message, Task, ToolCall, ToolSpec

MAZE = "agentgym/Maze-v0"
GO = ToolSpec("go", "", {"properties": {"to": {"type": "string"}, "fast": {"type": "boolean"}}, "required": ["to"]})
LOOK = ToolSpec("look", "", {"properties": {}})
WRONG = Message("assistant", "move: up", (ToolCall("move", {"direction": "up"}, "0"),))


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "maze.jsonl"
    maze = make(MAZE)
    record_traces(maze, [task for split in ("train", "valid") for task in maze.tasks(split)[:6]], path)
    return path


@pytest.fixture
def made(traces: Path) -> Callable[..., SemiOnlineEnv]:
    return partial(_made, traces=traces)


def _made(**arguments: Any) -> SemiOnlineEnv:
    env = make("agentgym/SemiOnline-v0", env=MAZE, **arguments)
    assert isinstance(env, SemiOnlineEnv)
    return env


def does(*calls: ToolCall | MalformedCall) -> Message:
    return Message("assistant", "", calls)


def go(to: str, **more: Any) -> ToolCall:
    return ToolCall("go", {"to": to, **more}, "7")


def long_task(env: Env) -> Task:
    """The second training task: an expert's way of seven moves."""
    task = env.tasks("train")[1]
    assert isinstance(env, SemiOnlineEnv)
    return task


# ------------------------------------------------------------------------------------------------------ comparison


@pytest.mark.parametrize(
    ("action", "score", "is_match"),
    [
        (does(go("east")), 1.0, True),
        (Message("assistant", "<think>East?</think> go", (go("east"),)), 1.0, True),
        (does(go("west")), 0.1 + 0.9 * 0.5, False),
        (does(go("east", fast=True)), 0.1 + 0.9 * 0.5, False),
        (does(ToolCall("look")), 0.1 + 0.9 * 0.1, False),
        (does(go("east"), go("east")), 0.1 + 0.9 * 0.1, False),
        (does(ToolCall("fly", {"to": "east"})), 0.0, False),
        (does(ToolCall("go", {"fast": True})), 0.0, False),
        (does(MalformedCall((0, 3), "no", "go(")), 0.0, False),
        (does(go("east"), MalformedCall((0, 3), "no", "go(")), 0.0, False),
        (Message("assistant", "go east"), 0.0, False),
        (Message("assistant", ""), 0.0, False),
    ],
)
def test_the_score_of_a_call(action: Message, score: float, is_match: bool) -> None:
    compared = compare(action, does(go("east")), [GO, LOOK])
    assert compared.format + compared.action == pytest.approx(score)
    assert compared.is_match is is_match


@pytest.mark.parametrize(
    ("text", "score"),
    [("My name is\n Ann. ", 1.0), ("<think>Who?</think>\nMy name is Ann.", 1.0), ("my name is Ann.", 0.0), ("", 0.0)],
)
def test_the_score_of_words(text: str, score: float) -> None:
    compared = compare(Message("assistant", text), Message("assistant", "My name is Ann."), [])
    assert (compared.format + compared.action, compared.is_match) == (score, score == 1.0)


def test_the_order_of_arguments_does_not_matter() -> None:
    one, other = ToolCall("go", {"to": "a", "fast": True}, "0"), ToolCall("go", {"fast": True, "to": "a"}, "1")
    assert compare(does(one), does(other), [GO]).is_match


# -------------------------------------------------------------------------------------------------------- episodes


def test_the_agents_own_actions_are_played_while_they_are_the_experts(made: Callable[..., SemiOnlineEnv]) -> None:
    env, bare = made(), MazeEnv()
    observation, _ = env.reset(options={"task": long_task(env)})
    assert observation == bare.reset(options={"task": bare.tasks("train")[1]})[0]
    for turn in range(7):
        action = env.oracle()
        stepped = env.step(action)
        assert stepped[0] == bare.step(action)[0]
        assert "played" not in stepped[4]
        assert stepped[1] == pytest.approx(1.0)
        assert [(part.name, part.role.value) for part in stepped[4]["reward_parts"]] == [
            ("format", "format"),
            ("match", "process"),
        ]
        assert stepped[2] is (turn == 6)
    assert stepped[4]["success"] is True


def test_what_is_wrong_is_replaced_by_what_the_expert_did(made: Callable[..., SemiOnlineEnv]) -> None:
    env, bare = made(), MazeEnv()
    env.reset(options={"task": long_task(env)})
    bare.reset(options={"task": bare.tasks("train")[1]})
    for turn in range(7):
        expert = env.oracle()
        observation, reward, terminated, _, info = env.step(WRONG if turn == 2 else expert)
        assert observation == bare.step(expert)[0]
        assert info.get("played") == (expert if turn == 2 else None)
        assert reward == pytest.approx(0.55 if turn == 2 else 1.0)
    assert (terminated, info["success"], env.num_patches) == (True, False, 1)


@pytest.mark.parametrize(("max_patches", "num_turns"), [(0, 1), (1, 2), (3, 4), (None, 7)])
def test_an_episode_ends_when_the_patches_are_used_up(
    made: Callable[..., SemiOnlineEnv], max_patches: int | None, num_turns: int
) -> None:
    env = made(max_patches=max_patches)
    env.reset(options={"task": long_task(env)})
    infos, is_over = [], False
    while not is_over:
        _, _, is_over, truncated, info = env.step(WRONG)
        infos.append(info)
        assert not truncated
    assert len(infos) == num_turns
    assert infos[-1]["success"] is False
    was_played = ["played" in info for info in infos]
    assert was_played == [True] * num_turns if max_patches is None else [True] * max_patches + [False]


def test_what_cannot_be_read_is_invalid_and_replaced_all_the_same(made: Callable[..., SemiOnlineEnv]) -> None:
    env = made()
    for action in (does(ToolCall("fly")), does(MalformedCall((0, 1), "no", "x")), Message("assistant", "hm")):
        env.reset(options={"task": long_task(env)})
        _, reward, _, _, info = env.step(action)
        assert (reward, info["is_valid"]) == (0.0, False)
        assert "played" in info
    assert env.step(WRONG)[4]["is_valid"] is True, "a move the maze does not know, but well-formed"


def test_a_snapshot_keeps_the_place_and_the_patches(made: Callable[..., SemiOnlineEnv]) -> None:
    env, other = made(max_patches=2), made(max_patches=2)
    env.reset(options={"task": long_task(env)})
    env.step(env.oracle())
    env.step(WRONG)
    snapshot = env.snapshot()
    other.restore(snapshot)
    assert (other.num_patches, other.oracle(), other.state_key()) == (1, env.oracle(), env.state_key())
    assert other.step(WRONG)[2] is False
    assert other.step(WRONG)[2] is True
    env.restore(snapshot)
    assert env.num_patches == 1


def test_the_state_says_where_one_is_and_not_how_one_came_there(made: Callable[..., SemiOnlineEnv]) -> None:
    keys = []
    for action in (None, WRONG):
        env = made()
        env.reset(options={"task": long_task(env)})
        env.step(action or env.oracle())
        keys.append(env.state_key())
    assert keys[0] == keys[1]


@pytest.mark.parametrize("max_patches", [None, 1, 0])
def test_it_keeps_the_contract(traces: Path, max_patches: int | None) -> None:
    report = check_env(lambda: SemiOnlineEnv(env=MAZE, traces=traces, max_patches=max_patches), num_episodes=2)
    assert [(check.name, check.detail) for check in report.failures] == []


# ----------------------------------------------------------------------------------------------- tasks and files


def test_tasks_are_the_traces_in_their_splits(made: Callable[..., SemiOnlineEnv]) -> None:
    env = made()
    assert [len(env.tasks(split)) for split in ("train", "valid", "test")] == [6, 6, 0]
    assert [task.id for task in env.tasks("valid")[:2]] == ["valid-0", "valid-1"]
    with pytest.raises(UnknownNameError, match="trian"):
        env.tasks("trian")


def test_two_traces_of_a_task_are_two_tasks(traces: Path, tmp_path: Path) -> None:
    first = read_traces(traces)[0]
    write_traces(tmp_path / "two.jsonl", [first, replace(first, rewards=tuple(-r for r in first.rewards))])
    tasks = _made(traces=tmp_path / "two.jsonl").tasks("train")
    assert [task.id for task in tasks] == ["train-0", "train-0#2"]
    assert tasks[0].content_hash != tasks[1].content_hash


def test_a_task_without_a_trace_is_refused(made: Callable[..., SemiOnlineEnv]) -> None:
    with pytest.raises(UsageError, match=r"task 'x' is of no trace in the file; .* 6 \(train\), 6 \(valid\)"):
        made().reset(options={"task": Task(id="x", split="train", seed=0)})
    with pytest.raises(ResetNeededError, match="no trace before reset"):
        made().oracle()


def test_a_changed_world_is_an_error_and_no_reward(traces: Path, tmp_path: Path) -> None:
    recording = max(read_traces(traces), key=lambda r: len(r.actions))
    write_traces(tmp_path / "other.jsonl", [replace(recording, state_keys=("x", *recording.state_keys[1:]))])
    with pytest.raises(EnvError, match=r"after 0 turns the state was 'x' .* record the traces anew"):
        _made(traces=tmp_path / "other.jsonl").reset(options={"task": 0, "split": recording.task.split})
    changed = replace(recording, state_keys=(*recording.state_keys[:2], "elsewhere", *recording.state_keys[3:]))
    write_traces(tmp_path / "changed.jsonl", [changed])
    env = _made(traces=tmp_path / "changed.jsonl")
    env.reset(options={"task": 0, "split": recording.task.split})
    env.step(env.oracle())
    for action in (env.oracle(), WRONG):
        snapshot = env.snapshot()
        with pytest.raises(EnvError, match="after 2 turns the state was 'elsewhere'"):
            env.step(action)
        env.restore(snapshot)


def test_a_world_that_ends_before_the_trace_is_an_error(traces: Path, tmp_path: Path) -> None:
    first = read_traces(traces)[0]
    longer = replace(
        first,
        actions=(*first.actions, first.actions[-1]),
        state_keys=(*first.state_keys, first.state_keys[-1]),
        rewards=(*first.rewards, 0.0),
    )
    write_traces(tmp_path / "longer.jsonl", [longer])
    env = _made(traces=tmp_path / "longer.jsonl")
    env.reset(options={"task": 0})
    with pytest.raises(EnvError, match="the episode ended 1 actions before the expert's did"):
        for _ in first.actions:
            env.step(env.oracle())


def test_files_that_are_no_traces(tmp_path: Path, traces: Path) -> None:
    with pytest.raises(CorruptDataError, match=r"no expert traces at .*none.jsonl; record some"):
        read_traces(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(CorruptDataError, match="holds no expert traces"):
        read_traces(tmp_path / "empty.jsonl")
    row = json.loads(traces.read_text().splitlines()[0])
    for line, needle in [
        ("{", "not a recorded episode"),
        ("[]", "not a recorded episode"),
        (json.dumps({"task": {}}), "not a recorded episode"),
        (json.dumps(row | {"state_keys": row["state_keys"][1:]}), "one key more than actions"),
        (json.dumps(row | {"actions": [], "state_keys": ["a"]}), "at least one action"),
    ]:
        (tmp_path / "bad.jsonl").write_text(traces.read_text().splitlines()[0] + f"\n{line}\n")
        with pytest.raises(CorruptDataError, match=f"line 2: .*{needle}"):
            read_traces(tmp_path / "bad.jsonl")


def test_an_expert_who_does_not_finish_leaves_no_trace(tmp_path: Path) -> None:
    maze = make(MAZE)
    written = record_traces(maze, maze.tasks("train")[:3], tmp_path / "some.jsonl", max_turns=2)
    assert [len(recording.actions) for recording in written] == [2]
    assert read_traces(tmp_path / "some.jsonl") == written
    assert all(isinstance(recording, Recording) for recording in written)


def test_arguments_that_cannot_be(traces: Path) -> None:
    with pytest.raises(UsageError, match="max_patches must be at least 0, or None for no limit; got -1"):
        _made(traces=traces, max_patches=-1)
    with pytest.raises(UsageError, match="AgentFlow-v0 asks sub-agents"):
        make("agentgym/SemiOnline-v0", env="agentgym/AgentFlow-v0", traces=traces)
