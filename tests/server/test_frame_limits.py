"""Limits of size in both directions: what is too large fails alone, and says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest
from testkit.env_servers import EnvServer, env_server
from websockets.sync.client import connect

import agentgym
from agentgym import Message
from agentgym.canonical import canonical
from agentgym.remote import wire
from agentgym.remote.channel import channel_to
from agentgym.remote.wire import TooLargeError

WIDE = '''
from agentgym import Env, Message, Task, register


def said(letter, size):
    """Return messages below the limit of one message."""
    return tuple(Message("user", letter * min(1_000_000, size - at)) for at in range(0, size, 1_000_000))


class Wide(Env):
    """Says as much as it is told to."""

    def __init__(self, *, size=1, task_size=0, max_turns=None):
        super().__init__(max_turns=max_turns)
        self._size, self._task_size = size, task_size

    def tasks(self, split):
        return [Task(id=f"{split}-{n}", split=split, seed=n, data={"text": "t" * self._task_size}) for n in range(300)]

    def start(self, task):
        return said("x", self._size)

    def respond(self, action):
        if action.text == "fail":
            raise ValueError("v" * self._size)
        self.finish(1.0)
        return said("y", int(action.text) if action.text.isdigit() else 1)

    def state_key(self):
        return "s"


class WideInProcess(Wide):
    """The same in a process of the server."""

    is_blocking = True


class Plain(Wide):
    """Its state key is the last observation, as by default."""

    state_key = Env.state_key


register("Plain-v0", Plain, max_turns=3)
register("Wide-v0", Wide, max_turns=3)
register("WideInProcess-v0", WideInProcess, max_turns=3)
'''
BOTH = pytest.mark.parametrize("name", ["Wide-v0", "WideInProcess-v0"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvServer]:
    path = tmp_path_factory.mktemp("wide") / "wide.py"
    path.write_text(WIDE, encoding="utf-8")
    with env_server(f"{path}:Wide-v0", f"{path}:WideInProcess-v0", f"{path}:Plain-v0") as started:
        yield started


def test_replies_of_many_sessions_are_split_over_frames(server: EnvServer) -> None:
    """Forty first observations of 900 kB are ready at once, and together twice the client's limit."""
    envs = [agentgym.make("Wide-v0", url=server.url, size=900_000) for _ in range(40)]
    before = channel_to(server.url, "").num_reconnects

    async def reset_all() -> list[int]:
        found = await asyncio.gather(*(env.areset(seed=0) for env in envs))
        return [len(observation[0].text) for observation, _ in found]

    assert asyncio.run(reset_all()) == [900_000] * 40
    assert channel_to(server.url, "").num_reconnects == before
    for env in envs:
        env.close()


@BOTH
def test_a_reply_above_the_limit_fails_alone(server: EnvServer, name: str) -> None:
    huge = agentgym.make(name, url=server.url, size=17 * 1024 * 1024)
    small = agentgym.make(name, url=server.url)
    small.reset(seed=0)
    with pytest.raises(TooLargeError, match=r"the reply to 'reset' has 17,8\d\d,\d\d\d bytes, more than the limit of"):
        huge.reset(seed=0)
    with pytest.raises(TooLargeError, match="the reply to 'step'"):
        small.step(Message("assistant", str(17 * 1024 * 1024)))
    observation, _ = small.reset(seed=0)
    assert observation[0].text == "x" and channel_to(server.url, "").num_reconnects == 0
    small.close()
    huge.close()


def test_a_reply_just_below_the_limit_arrives(server: EnvServer) -> None:
    size = wire.MAX_REPLY_BYTES - 4096
    env = agentgym.make("Wide-v0", url=server.url, size=size)
    observation, _ = env.reset(seed=0)
    assert sum(len(message.text) for message in observation) == size
    env.close()


@BOTH
def test_a_long_message_of_an_error_is_cut(server: EnvServer, name: str) -> None:
    env = agentgym.make(name, url=server.url, size=3 * 1024 * 1024)
    env.reset(seed=0)
    with pytest.raises(agentgym.errors.EnvError, match="more characters") as raised:
        env.step(Message("assistant", "fail"))
    assert len(str(raised.value)) < wire.MAX_MESSAGE_CHARS + 300
    env.close()


@BOTH
def test_a_page_of_large_tasks_is_split(server: EnvServer, name: str) -> None:
    env = agentgym.make(name, url=server.url, task_size=200_000)
    tasks = env.tasks("test")
    assert len(tasks) == 300
    for index in (299, 0, 150, 255, 256, 21, 20):
        assert tasks[index].id == f"test-{index}"
    assert [task.id for task in tasks] == [f"test-{index}" for index in range(300)]
    env.close()


def test_over_http_a_reply_has_the_same_limit(server: EnvServer) -> None:
    opening = {"env": "Wide-v0", "kwargs": {"size": 17 * 1024 * 1024}}
    session = httpx.post(f"{server.http}/sessions", json=opening, headers=server.headers, timeout=60).json()["session"]
    refused = httpx.post(
        f"{server.http}/sessions/{session}/reset", json={"seed": 0}, headers=server.headers, timeout=60
    )
    assert refused.status_code == 502 and refused.json()["error"]["type"] == "TooLargeError"


def test_an_observation_is_sent_once(server: EnvServer) -> None:
    """By default it is the state key, too, which the client then makes itself."""
    opening = {"env": "Plain-v0", "kwargs": {"size": 900_000}}
    session = httpx.post(f"{server.http}/sessions", json=opening, headers=server.headers).json()["session"]
    reply = httpx.post(f"{server.http}/sessions/{session}/reset", json={"seed": 0}, headers=server.headers)
    assert 900_000 < len(reply.content) < 910_000
    for size in (900_000, 3):
        env = agentgym.make("Plain-v0", url=server.url, size=size)
        observation, _ = env.reset(seed=0)
        assert env.state_key() == canonical([message.text for message in observation])
        observation = env.step(Message("assistant", str(size)))[0]
        assert env.state_key() == canonical([message.text for message in observation])
        env.close()


def test_a_client_that_does_not_read_stops_only_itself(server: EnvServer) -> None:
    asked = {"op": "tasks", "env": "Wide-v0", "kwargs": {"task_size": 200_000}, "split": "test"}
    before = server.memory_mib
    with connect(f"{server.url}/ws", max_size=None, compression=None, additional_headers=server.headers) as silent:
        for number in range(1, 161):  # 640 MB of replies
            silent.send(json.dumps([{"id": number, **asked}]))
        for _ in range(20):
            env = agentgym.make("Wide-v0", url=server.url)
            env.reset(seed=0)
            env.close()
        assert server.memory_mib < before + 450


def test_a_request_above_the_limit_is_not_sent(server: EnvServer) -> None:
    env = agentgym.make("Wide-v0", url=server.url)
    env.reset(seed=0)
    with pytest.raises(TooLargeError, match="a request of"):
        env.step(Message("assistant", "z" * (9 * 1024 * 1024)))
    env.reset(seed=0)
    env.close()


def test_frames_join_up_to_half_the_limit() -> None:
    part = b"1" * (wire.MAX_FRAME_BYTES // 4)
    assert [len(json.loads(frame)) for frame in wire.joined_frames([b"1"] * 10)] == [10]
    assert [frame.count(",") + 1 for frame in wire.joined_frames([part] * 3)] == [1, 1, 1]
    assert list(wire.joined_frames([])) == []
