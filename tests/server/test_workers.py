"""Environments that block run in processes of the server: their deaths and hangs stay there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from testkit.env_servers import EnvServer, env_server

import agentgym
from agentgym.errors import EnvError, EnvTimeoutError
from agentgym.remote.env import RemoteEnv

SLOW = '''
import os
import time

from agentgym import ToolEnv, register, tool


class Slow(ToolEnv):
    """Does what libraries do that nobody wrote for servers."""

    is_blocking = True
    max_turns = 6

    def start(self, task):
        return f"in process {os.getpid()}, number {self.np_random.integers(1000)}"

    @tool
    def work(self, seconds: float) -> str:
        """Take some time."""
        time.sleep(seconds)
        print("this must not reach the server's output")
        return f"worked {seconds}"

    @tool
    def hang(self) -> str:
        """Never come back."""
        while True:
            time.sleep(0.01)

    @tool
    def die(self) -> str:
        """Take the process along."""
        os._exit(3)

    @tool
    def win(self) -> str:
        """Win."""
        self.finish(1.0)
        return "won"


register("Slow-v0", Slow)
'''


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("own") / "slow.py"
    path.write_text(SLOW, encoding="utf-8")
    return f"{path}:Slow-v0"


@pytest.fixture(scope="module")
def server(own: str) -> Iterator[EnvServer]:
    with env_server(own, "agentgym/Maze-v0", "--processes", "2", "--step-timeout-s", "2") as started:
        yield started


@pytest.fixture
def http(server: EnvServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http, headers=server.headers, timeout=60.0) as client:
        yield client


def process_of(env: RemoteEnv) -> int:
    observation, _ = env.reset(seed=4)
    return int(observation[0].text.split()[2].rstrip(","))


def made(server: EnvServer) -> RemoteEnv:
    env = agentgym.make("Slow-v0", url=server.url)
    assert isinstance(env.unwrapped, RemoteEnv)
    return env.unwrapped


def is_gone(pid: int, within_s: float = 30.0) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split()[2] != "Z":
                time.sleep(0.05)
                continue
        return True
    return False


def test_blocking_environments_share_processes_apart_from_the_server(server: EnvServer) -> None:
    envs = [made(server) for _ in range(4)]
    processes = [process_of(env) for env in envs]
    assert len(set(processes)) == 2 and server.process.pid not in processes
    assert sorted(processes.count(one) for one in set(processes)) == [2, 2]
    for env in envs:
        env.close()


def test_a_blocking_environment_gives_what_it_gives_here(server: EnvServer, own: str) -> None:
    remote, local = made(server), agentgym.make(own)
    there, here = remote.reset(seed=7, options={"task": 3})[0], local.reset(seed=7, options={"task": 3})[0]
    assert there[0].text.split(",")[1] == here[0].text.split(",")[1]
    assert [tool.name for tool in remote.tools] == [tool.name for tool in local.unwrapped.tools]  # type: ignore[attr-defined]
    for call in ({"name": "work", "arguments": {"seconds": 0}}, {"name": "win", "arguments": {}}):
        assert remote.step(call)[:4] == local.step(call)[:4]
    assert [task.id for task in remote.tasks("test")[:3]] == ["test-0", "test-1", "test-2"]
    remote.close()


def test_a_death_fails_the_episodes_of_its_process_alone(server: EnvServer) -> None:
    envs = [made(server) for _ in range(4)]
    processes = [process_of(env) for env in envs]
    doomed, *with_it = (env for env, one in zip(envs, processes, strict=True) if one == processes[0])
    apart = next(env for env, one in zip(envs, processes, strict=True) if one != processes[0])
    with pytest.raises(
        EnvError, match="a process of the server, in which the environment ran, ended: exit code 3"
    ) as died:
        doomed.step({"name": "die", "arguments": {}})
    assert str(processes[0]) not in str(died.value)  # equal deaths are counted together
    for env in with_it:
        with pytest.raises(EnvError, match="exit code 3"):
            env.step({"name": "work", "arguments": {"seconds": 0}})
    assert apart.step({"name": "win", "arguments": {}})[1] == 1.0
    again = made(server)
    assert process_of(again) not in (processes[0], server.process.pid)
    for env in (*envs, again):
        env.close()


def test_a_hang_is_a_timeout_and_ends_with_its_process(server: EnvServer, http: httpx.Client) -> None:
    envs = [made(server) for _ in range(4)]
    processes = [process_of(env) for env in envs]
    hung, neighbour, *_ = (env for env, one in zip(envs, processes, strict=True) if one == processes[0])
    with pytest.raises(EnvTimeoutError, match="not done after 2 s"):
        hung.step({"name": "hang", "arguments": {}})
    assert http.get("/health").json()["status"] == "ok"
    later = made(server)
    assert process_of(later) != processes[0]  # it takes no more sessions
    assert neighbour.step({"name": "win", "arguments": {}})[1] == 1.0  # and lets those it has go on
    os.kill(processes[0], 0)
    for env in (*envs, later):
        env.close()
    assert is_gone(processes[0])


def test_the_agent_plane_reaches_into_a_process(server: EnvServer, http: httpx.Client) -> None:
    opened = http.post("/sessions", json={"env": "Slow-v0"}).json()
    agent = {"Authorization": f"Bearer {opened['agent_token']}"}
    tools = http.get("/agent/tools", headers=agent).json()
    assert [one["function"]["name"] for one in tools] == ["work", "hang", "die", "win"]
    call = {"name": "win", "arguments": {}}
    assert http.post("/agent/call", json=call, headers=agent).status_code == 400  # no episode runs
    assert http.post(f"/sessions/{opened['session']}/reset", json={"seed": 1}).status_code == 200
    said = http.post("/agent/call", json=call, headers=agent).json()
    assert said["messages"][0]["text"] == "won" and said["is_over"] is True
    graded = http.get(f"/sessions/{opened['session']}/grade").json()
    assert graded["success"] is True and graded["reward"] == 1.0
    assert http.delete(f"/sessions/{opened['session']}").status_code == 200


def test_wrong_requests_are_answered_as_without_processes(http: httpx.Client) -> None:
    assert "size" in http.post("/sessions", json={"env": "Slow-v0", "kwargs": {"size": 1}}).text
    refused = http.post("/tasks", json={"env": "Slow-v0", "split": "weather"})
    assert refused.status_code == 400 and "weather" in refused.text


def test_no_process_outlives_the_server(own: str) -> None:
    for end in (EnvServer.terminate, EnvServer.kill):
        with env_server(own, "--processes", "1", "--drain-s", "0") as server:
            env = made(server)
            pid = process_of(env)
            end(server)
            assert is_gone(pid)


def test_without_processes_they_run_in_threads(own: str) -> None:
    with env_server(own, "--processes", "0") as server:
        env = made(server)
        assert process_of(env) == server.process.pid
        env.close()
