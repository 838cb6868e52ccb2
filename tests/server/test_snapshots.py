"""Snapshots over the wire: the server keeps states, and forgets the oldest."""

from __future__ import annotations

import asyncio
import base64
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from testkit.env_servers import EnvServer, env_server

import agentgym
from agentgym.env.env import Env, Snapshot
from agentgym.errors import ReplayMismatchError
from agentgym.remote.env import RemoteEnv, RemoteState
from agentgym.server.sessions import States

HOUSE, MAZE = "agentgym/Household-v0", "agentgym/Maze-v0"

BLOCKING = '''
from agentgym import ToolEnv, register, tool


class Counter(ToolEnv):
    """Counts, with a die on the way."""

    is_blocking = True
    has_native = True
    num_starts = 0

    def start(self, task):
        type(self).num_starts += 1
        self.total = 0
        return "count"

    @tool
    def roll(self) -> str:
        """Roll."""
        self.total += int(self.np_random.integers(1, 7))
        self.award(0.1, "roll", "process")
        return f"{self.total}, started {type(self).num_starts} times"

    def state_key(self):
        return str(self.total)

    def dump_state(self):
        return self.total if self.has_native else None

    def load_state(self, state):
        self.total = state


class Replayed(Counter):
    """Has no native snapshots."""

    has_native = False


register("Counter-v0", Counter)
register("Replayed-v0", Replayed)
'''


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("own") / "counter.py"
    path.write_text(BLOCKING, encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def server(own: str) -> Iterator[EnvServer]:
    with env_server(HOUSE, MAZE, f"{own}:Counter-v0", f"{own}:Replayed-v0", "--processes", "2") as started:
        yield started


def env_of(env_id: str, **kwargs: Any) -> Env:
    made = agentgym.make(env_id, **kwargs).unwrapped
    assert isinstance(made, Env)
    return made


def by_oracle(env: Env, turns: int) -> list[Any]:
    return [env.step(env.oracle())[:4] for _ in range(turns)]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_restored_episode_goes_on_as_here(server: EnvServer, is_async: bool) -> None:
    def snapshot_of(env: Env) -> Snapshot:
        return asyncio.run(env.asnapshot()) if is_async else env.snapshot()

    def return_to(env: Env, snapshot: Snapshot) -> None:
        asyncio.run(env.arestore(snapshot)) if is_async else env.restore(snapshot)

    found = []
    for url in ({}, {"url": server.url}):
        env, other = env_of(HOUSE, **url), env_of(HOUSE, **url)
        env.reset(seed=3)
        before = by_oracle(env, 2)
        snapshot = snapshot_of(env)
        after = by_oracle(env, 3)
        return_to(other, snapshot)  # another instance, and twice
        again = by_oracle(other, 3)
        return_to(other, snapshot)
        assert after == again == by_oracle(other, 3) and other.turn == 5
        found.append((before, after, snapshot.state_key))
        assert isinstance(snapshot.native, RemoteState) == bool(url)
        env.close()
        other.close()
    assert found[0] == found[1]


def test_a_process_hands_its_states_to_the_server(server: EnvServer, own: str) -> None:
    env, other, third = (env_of("Counter-v0", url=server.url) for _ in range(3))
    roll = {"name": "roll", "arguments": {}}
    for one in (env, other, third):  # in both processes
        one.reset(seed=1)
    env.step(roll)
    snapshot = env.snapshot()
    total = [env.step(roll)[0][0].text.split(",")[0] for _ in range(3)][-1]
    for one in (other, third):
        one.restore(snapshot)
        assert [one.step(roll)[0][0].text.split(",")[0] for _ in range(3)][-1] == total
        one.close()
    env.close()


def test_without_native_snapshots_the_actions_are_replayed(server: EnvServer, own: str) -> None:
    env = env_of("Replayed-v0", url=server.url)
    env.reset(seed=1)
    env.step({"name": "roll", "arguments": {}})
    snapshot = env.snapshot()
    assert snapshot.native is None and len(snapshot.actions) == 1
    env.restore(snapshot)
    assert env.state_key() == snapshot.state_key
    env.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_state_that_is_gone_is_replayed(server: EnvServer, is_async: bool) -> None:
    env = env_of(HOUSE, url=server.url)
    env.reset(seed=3)
    by_oracle(env, 2)
    snapshot = env.snapshot()
    rest = by_oracle(env, 2)
    assert isinstance(snapshot.native, RemoteState)
    gone = (replace(snapshot.native, id="gone"), RemoteState("ws://127.0.0.1:1", "elsewhere"))
    for native in gone:
        lost = replace(snapshot, native=native)
        asyncio.run(env.arestore(lost)) if is_async else env.restore(lost)
        assert by_oracle(env, 2) == rest
    with pytest.raises(ReplayMismatchError):
        lost = replace(snapshot, native=gone[0], state_key="another")
        asyncio.run(env.arestore(lost)) if is_async else env.restore(lost)
    env.close()


def test_rewards_so_far_come_back_with_a_state(server: EnvServer) -> None:
    with httpx.Client(base_url=server.http, headers=server.headers, timeout=60) as http:
        session = http.post("/sessions", json={"env": "Counter-v0"}).json()["session"]
        roll = {"action": {"name": "roll", "arguments": {}}}
        assert http.post(f"/sessions/{session}/reset", json={"seed": 1}).status_code == 200
        http.post(f"/sessions/{session}/step", json=roll)
        state = http.post(f"/sessions/{session}/snapshot").json()["state"]
        for _ in range(2):
            http.post(f"/sessions/{session}/step", json=roll)
        assert http.get(f"/sessions/{session}/grade").json()["reward"] == pytest.approx(0.3)
        assert http.post(f"/sessions/{session}/restore", json={"state": state}).status_code == 200
        graded = http.get(f"/sessions/{session}/grade").json()
        assert graded["reward"] == pytest.approx(0.1) and graded["num_turns"] == 1
        maze = http.post("/sessions", json={"env": MAZE}).json()["session"]
        wrong = http.post(f"/sessions/{maze}/restore", json={"state": state})
        assert wrong.status_code == 400 and "Counter-v0" in wrong.text
        assert http.post(f"/sessions/{maze}/restore", json={"state": "none"}).status_code == 404
        for one in (session, maze):
            http.delete(f"/sessions/{one}")


class Mark:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_nothing_that_a_client_sends_is_unpickled(server: EnvServer, tmp_path: Path) -> None:
    from agentgym.remote.channel import channel_to

    trap = base64.b64encode(pickle.dumps(Mark(tmp_path / "unpickled"))).decode()
    pickle.loads(base64.b64decode(trap))
    (tmp_path / "unpickled").rmdir()  # it works
    channel = channel_to(server.url, "")
    for env_id in ("Counter-v0", MAZE):
        env = env_of(env_id, url=server.url)
        env.reset(seed=1)
        assert isinstance(env, RemoteEnv)
        for op in ("load", "restore"):
            with pytest.raises(agentgym.errors.AgentGymError):
                channel.submit(op, session=env._session, state=trap).result(20)
        env.close()
    assert not (tmp_path / "unpickled").exists()


def test_the_oldest_states_are_dropped() -> None:
    states = States(max_bytes=100)
    ids = [states.add("x" * 30) for _ in range(3)]
    assert states.find(ids[0])
    ids.append(states.add("y" * 30))
    assert [states.find(ids[place])[0] for place in (0, 2, 3)] == ["x", "x", "y"]
    with pytest.raises(agentgym.errors.EnvError, match="any more"):
        states.find(ids[1])
    assert states.add("z" * 101) is None and states.add(None) is None
