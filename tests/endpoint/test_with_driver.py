"""Agents that play in forks of a process that has loaded them: once, alone, and to an end that is told."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentgym.endpoint.harnesses.with_driver import play_driver
from agentgym.errors import EnvError
from agentgym.processes.guard import start_ticks
from agentgym.processes.loaded import Loaded

EPISODE: Any = SimpleNamespace(base_url="http://here/7/v1", root_url="http://here/7", api_key="key-7", model="policy")
DRIVER = """
import json, os, random, signal, subprocess, sys, time
from pathlib import Path

with open(Path(__file__).with_name("loads.txt"), "a") as out:
    print(os.environ["AT_LOAD"], file=out)
draws = []


def play(path):
    settings = json.loads(Path(path).read_text())
    draws.append(random.random())
    seen = {"settings": settings, "draws": draws, "key": os.environ["OPENAI_API_KEY"], "cwd": os.getcwd()}
    Path(settings["out"]).write_text(json.dumps(seen))
    eval(settings.get("then", "0"))
"""


@pytest.fixture
def driver(tmp_path: Path) -> str:
    (tmp_path / "driver.py").write_text(DRIVER)
    return str(tmp_path / "driver.py")


def play(driver: str, out: Path, then: str = "0", python: str = "") -> dict[str, Any]:
    settings = {"out": str(out), "then": then}
    asyncio.run(play_driver(driver, python, EPISODE, settings, {"AT_LOAD": "in {folder}"}))
    seen: dict[str, Any] = json.loads(out.read_text())
    return seen


def test_the_agent_is_loaded_once_and_each_episode_is_a_process_of_its_own(driver: str, tmp_path: Path) -> None:
    first, second = (play(driver, tmp_path / f"{number}.json") for number in range(2))
    told = {"base_url": EPISODE.base_url, "api_key": EPISODE.api_key, "model": EPISODE.model}
    assert first["settings"] == {"out": str(tmp_path / "0.json"), "then": "0", **told}
    assert first["key"] == EPISODE.api_key
    assert len(first["draws"]) == len(second["draws"]) == 1 and first["draws"] != second["draws"]
    assert first["cwd"] != second["cwd"] and not Path(first["cwd"]).exists()
    (loaded,) = (tmp_path / "loads.txt").read_text().splitlines()
    assert Path(loaded.removeprefix("in ")).is_dir()


def test_many_play_beside_each_other(driver: str, tmp_path: Path) -> None:
    async def all_of_them() -> None:
        settings = [{"out": str(tmp_path / f"{number}.json"), "then": "time.sleep(0.3)"} for number in range(40)]
        variables = {"AT_LOAD": ""}
        await asyncio.gather(*(play_driver(driver, "", EPISODE, one, variables) for one in settings))

    asyncio.run(all_of_them())
    assert len({json.loads((tmp_path / f"{number}.json").read_text())["cwd"] for number in range(40)}) == 40


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ("1 / 0", "the agent ended with code 1: (?s:.*)ZeroDivisionError"),
        ("sys.exit(3)", "the agent ended with code 3: 3"),
        ("sys.exit('no model')", "the agent ended with code 1: no model"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the agent ended with code -9"),
    ],
)
def test_what_ends_otherwise_is_a_failure_of_the_infrastructure(
    driver: str, tmp_path: Path, then: str, message: str
) -> None:
    play(driver, tmp_path / "first.json")  # so that it is loaded
    with pytest.raises(EnvError, match=message):
        play(driver, tmp_path / "out.json", then)


def test_what_an_agent_has_started_ends_with_its_episode(driver: str, tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    start = f"Path({str(pids)!r}).write_text(str(subprocess.Popen(['sleep', '60'], start_new_session=True).pid))"
    play(driver, tmp_path / "out.json", start)
    assert not start_ticks(int(pids.read_text()))
    pids.unlink()

    async def cancelled() -> None:
        settings = {"out": str(tmp_path / "out.json"), "then": f"({start}, time.sleep(60))"}
        playing = asyncio.create_task(play_driver(driver, "", EPISODE, settings, {"AT_LOAD": ""}))
        while not pids.exists() or not pids.read_text():
            await asyncio.sleep(0.01)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    asyncio.run(cancelled())
    assert not start_ticks(int(pids.read_text()))


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text("import no_such_agent\n")
    with pytest.raises(EnvError, match=r"cannot be loaded: .*No module named 'no_such_agent'; install it for .*python"):
        play(str(tmp_path / "driver.py"), tmp_path / "out.json")
    with pytest.raises(EnvError, match=r"harness.python='no-such-python' is no program; name a Python"):
        play(str(tmp_path / "driver.py"), tmp_path / "out.json", python="no-such-python")


def test_a_dead_process_is_loaded_again(driver: str, tmp_path: Path) -> None:
    play(driver, tmp_path / "out.json")
    with pytest.raises(EnvError, match="the agent was killed"):
        play(driver, tmp_path / "out.json", "os.kill(os.getppid(), signal.SIGKILL)")  # what watches this episode
    play(driver, tmp_path / "out.json")
    loaded = Loaded.shared(sys.executable, Path(driver), lambda _: {})
    assert loaded._process is not None
    loaded._process.kill()
    loaded._process.wait()
    play(driver, tmp_path / "out.json")
    assert len((tmp_path / "loads.txt").read_text().splitlines()) == 2
