"""The adapter to AppWorld with a scripted server: data, prompt, judging, limits, and failures of the infrastructure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.appworld_server import write_appworld, write_python

from agentgym.envs.appworld.data import ROOT_VARIABLE, AppWorldData
from agentgym.envs.appworld.env import AppWorldEnv
from agentgym.envs.appworld.server import PYTHON_VARIABLE, OwnServer, RemoteServer, loaded_appworld
from agentgym.errors import CorruptDataError, EnvError, EnvTimeoutError, UnknownNameError, UsageError
from agentgym.evals.suites import load_suite, open_suite
from agentgym.processes.guard import start_ticks
from agentgym.types import Message, RewardRole, ToolCall


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_appworld(tmp_path / "root")


@pytest.fixture
def python(tmp_path: Path) -> str:
    return write_python(tmp_path)


@pytest.fixture
def env(data: Path, python: str) -> Iterator[AppWorldEnv]:
    made = AppWorldEnv(data_dir=data, python=python, max_turns=3, reward="share")
    yield made
    made.close()


def call(code: str) -> Message:
    return Message("assistant", "", (ToolCall("execute", {"code": code}, "0"),))


# --------------------------------------------------------------------------------------------------------------- data


def test_splits(data: Path) -> None:
    found = AppWorldData(data)
    by_split = {
        split: [task.id for task in found.tasks(split)] for split in ("train", "valid", "test", "test_challenge")
    }
    assert by_split == {"train": ["aaa_1", "aaa_2"], "valid": ["bbb_1"], "test": ["ccc_1"], "test_challenge": ["ddd_1"]}
    assert found.tasks("dev") == found.tasks("valid") and found.tasks("test_normal") == found.tasks("test")
    with pytest.raises(UnknownNameError, match="unknown split of AppWorld 'tset'"):
        found.tasks("tset")
    (data / "datasets" / "dev.txt").unlink()
    with pytest.raises(UsageError, match=r"there is no .*dev\.txt, which lists AppWorld's dev tasks"):
        found.tasks("valid")


def test_what_is_missing_is_said(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ROOT_VARIABLE, raising=False)
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    with pytest.raises(UsageError, match=r"data_dir is missing.*appworld download data --root FOLDER"):
        AppWorldEnv()
    with pytest.raises(UsageError, match=r"has no folder datasets.*appworld download data"):
        AppWorldEnv(data_dir=data.parent)
    with pytest.raises(UsageError, match=r"needs a Python that has appworld.*pip install appworld==.*PYTHON"):
        AppWorldEnv(data_dir=data)
    with pytest.raises(UsageError, match="is no program"):
        AppWorldEnv(data_dir=data, python="/nowhere/python")
    with pytest.raises(UsageError, match="address of AppWorld's server"):
        AppWorldEnv(data_dir=data, url="127.0.0.1:9000")
    with pytest.raises(UnknownNameError, match="unknown reward of AppWorld"):
        AppWorldEnv(data_dir=data, reward="tests")


def test_tasks_are_those_they_were_made_of(env: AppWorldEnv, data: Path) -> None:
    task = env.tasks("train")[0]
    (data / "tasks" / "aaa_1" / "specs.json").write_text('{"instruction": "Another."}')
    with pytest.raises(UsageError, match="was another when it was made"):
        env.reset(options={"task": task})
    (data / "tasks" / "aaa_1" / "specs.json").write_text("{")
    with pytest.raises(CorruptDataError, match="is not JSON"):
        env.tasks("train")
    with pytest.raises(UsageError, match=r"no task '\.\./x'"):
        AppWorldData(data).task_folder("../x")


def test_the_suites(data: Path, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, task in (("appworld-normal", "ccc_1"), ("appworld-challenge", "ddd_1")):
        monkeypatch.delenv(ROOT_VARIABLE, raising=False)
        suite = load_suite(name)
        with pytest.raises(UsageError, match=rf"suite {name}: data_dir: APPWORLD_ROOT is not set.*download data"):
            suite.require_data()
        monkeypatch.setenv(ROOT_VARIABLE, str(data.parent))
        monkeypatch.setenv(PYTHON_VARIABLE, python)
        (part,) = open_suite(suite).parts
        assert [one.id for one in part.tasks] == [task]


# --------------------------------------------------------------------------------------------------------- an episode


def test_an_episode(env: AppWorldEnv) -> None:
    (said,), _ = env.reset(options={"task": "aaa_1"})
    for word in ("Ada Marsh", "ada@example.com", "5550001", "2023-05-18 12:00:00", "Do aaa_1.", "complete_task"):
        assert word in said.text
    (said,), reward, terminated, _, info = env.step(call("1/0"))
    assert (said.text, reward, terminated, info["is_valid"]) == ("Execution failed. 1/0", 0.0, False, True)
    (said,), reward, terminated, truncated, info = env.step(call("one two three done"))
    assert (said.text, reward, terminated, truncated) == ("one two three done", 1.0, True, False)
    assert (info["success"], info["tests_passed"], info["num_tests"], info["tests_failed"]) == (True, 3, 3, ())
    assert env.task_type == "difficulty 2"


def test_what_is_not_completed_is_judged_too(env: AppWorldEnv) -> None:
    env.reset(options={"task": "ddd_1"})
    env.step(call("one"))
    env.step(call("two"))
    *_, reward, terminated, truncated, info = env.step(Message("assistant", "I have done it."))
    assert (terminated, truncated, info["success"], info["is_valid"]) == (False, True, False, False)
    assert reward == pytest.approx(2 / 3) and info["tests_failed"] == ("three",)


def test_rewards(data: Path, python: str) -> None:
    env = AppWorldEnv(data_dir=data, python=python)
    env.reset(options={"task": "aaa_1"})
    *_, info = env.step(call("one two done"))
    assert [(part.value, part.role) for part in info["reward_parts"]] == [(0.0, RewardRole.OUTCOME)]
    assert not info["success"] and info["tests_passed"] == 2
    assert env.oracle().calls[0].arguments["code"].endswith("solution(apis, requester)")  # type: ignore[union-attr]
    env.reset(options={"task": "ccc_1"})
    with pytest.raises(UsageError, match="gives no solution of ccc_1; those of train and valid have one"):
        env.oracle()
    env.close()


def test_nothing_runs_after_completion_and_long_output_is_cut(data: Path, python: str) -> None:
    env = AppWorldEnv(data_dir=data, python=python, max_chars=10)
    env.reset(options={"task": "aaa_1"})
    (said,), *_ = env.step(call("x" * 50))
    assert said.text == f"{'x' * 10}\n[the rest is not shown]"
    calls = (ToolCall("execute", {"code": "one done"}, "0"), ToolCall("execute", {"code": "two"}, "1"))
    (_, refused), *_, info = env.step(Message("assistant", "", calls))
    assert "the episode has ended" in refused.text and info["tests_passed"] == 1
    env.close()


def test_the_interpreter_may_be_a_relative_path(data: Path, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(python).parent)
    monkeypatch.setenv(PYTHON_VARIABLE, f"./{Path(python).name}")
    env = AppWorldEnv(data_dir="root/data")
    env.reset(options={"task": "aaa_1"})
    *_, info = env.step(call("one two three done"))
    assert info["success"]
    env.close()


def test_coroutines_play_the_same(env: AppWorldEnv) -> None:
    async def play() -> float:
        await env.areset(options={"task": "aaa_2"})
        _, reward, terminated, *_ = await env.astep(call("one done"))
        assert terminated
        return reward

    assert asyncio.run(play()) == pytest.approx(1 / 3)


# ----------------------------------------------------------------------------------------- the infrastructure's doing


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("die", "(?s)did not answer execute.*a last word"),
        ("fail", "answered execute with 500: Internal Server Error"),
        ("junk", "answered execute with no output: junk"),
        ("spoil done", "tests of aaa_1 could not run: the tests are broken"),
        ("crash done", "tests of aaa_1 could not run: "),
        ("odd done", "gave a result in another form"),
    ],
)
def test_failures_are_no_rewards(env: AppWorldEnv, code: str, message: str) -> None:
    env.reset(options={"task": "aaa_1"})
    with pytest.raises(EnvError, match=message):
        env.step(call(code))
    env.reset(options={"task": "aaa_1"})  # the next episode has a server of its own
    *_, info = env.step(call("one two three done"))
    assert info["success"]


def test_a_server_that_hangs(env: AppWorldEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym.envs.appworld.env._SLACK_S", -99.5)
    env.reset(options={"task": "aaa_1"})
    with pytest.raises(EnvTimeoutError, match=r"did not answer execute within 0\.5 s"):
        env.step(call("hang"))
    assert isinstance(env._server, OwnServer) and env._server.pid is None


def test_appworld_is_loaded_once_for_all_episodes_and_environments(data: Path, python: str) -> None:
    envs = [AppWorldEnv(data_dir=data, python=python) for _ in range(2)]
    pids = []
    for env in (*envs, *envs):
        env.reset(options={"task": "aaa_1"})
        pid, watcher = env.step(call("pids"))[0][0].text.split()
        assert isinstance(env._server, OwnServer) and str(env._server.pid) == watcher
        pids.append(int(pid))
        assert (Path("/proc") / pid).exists()
    assert len(set(pids)) == 4
    loaded = loaded_appworld(python)
    assert loaded._folder is not None and (loaded._folder / "imported.txt").read_text() == "venmo venmo "
    process, folder = loaded._process, loaded._folder
    assert process is not None and process.poll() is None
    loaded.leave()
    for env in envs:
        assert process.poll() is None
        env.close()
    assert process.poll() is not None and not folder.exists()
    assert not any(start_ticks(pid) for pid in pids)


def test_a_dead_process_is_replaced(env: AppWorldEnv, python: str) -> None:
    env.reset(options={"task": "aaa_1"})
    loaded = loaded_appworld(python)
    loaded.leave()
    assert loaded._process is not None
    loaded._process.kill()
    loaded._process.wait()
    env.reset(options={"task": "aaa_1"})
    *_, info = env.step(call("one two three done"))
    assert info["success"]


def test_a_process_that_does_not_load_in_time(data: Path, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nsleep 60\n")
    slow.chmod(0o755)
    env = AppWorldEnv(data_dir=data, python=str(slow), load_timeout_s=0.2)
    with pytest.raises(EnvTimeoutError, match=r"does not load within 0\.2 s"):
        env.reset(options={"task": "aaa_1"})
    env.close()


def test_a_server_that_does_not_start(data: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("#!/bin/sh\necho 'run appworld install' >&2\nexit 1\n")
    wrong.chmod(0o755)
    env = AppWorldEnv(data_dir=data, python=str(wrong))
    for _ in range(2):
        with pytest.raises(EnvError, match="does not start; its log ends: run appworld install"):
            env.reset(options={"task": "aaa_1"})
    env.close()


def test_servers_that_run_already(data: Path, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = OwnServer(AppWorldData(data), python, 20.0)
    server.begin("aaa_1")
    first, second = (AppWorldEnv(data_dir=data, url=f"{server._url}/") for _ in range(2))
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    first.reset(options={"task": "aaa_1"})
    with pytest.raises(UsageError, match="all 1 servers of url= are at work"):
        second.reset(options={"task": "aaa_1"})
    *_, info = first.step(call("done"))
    assert info["success"] and info["num_tests"] == 1, "its own tests ran"
    second.reset(options={"task": "aaa_1"})
    for env in (first, second):
        env.close()
    assert not RemoteServer._taken
    server.close()
    gone = AppWorldEnv(data_dir=data, url="http://127.0.0.1:9")
    with pytest.raises(EnvError, match="did not answer initialize: ConnectError"):
        gone.reset(options={"task": "aaa_1"})
    gone.close()
