"""A remote environment is the local one: equal episodes, also over connections that are cut and servers that die."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from testkit.env_servers import EnvServer, env_server

import agentgym
from agentgym import Message, ToolCall
from agentgym.check import check_env
from agentgym.errors import EnvError, MissingExtraError, ToolError, UnknownNameError, UsageError
from agentgym.registry import turn_limit
from agentgym.remote import channel as channel_module
from agentgym.remote import wire
from agentgym.remote.env import RemoteEnv
from agentgym.types import RewardPart, Task, Trajectory

HOUSE = "agentgym/Household-v0"

OWN = '''
import os
import sys
import time

from agentgym import Env, Message, ToolEnv, ToolError, register, tool
from agentgym.types import ImagePart, TextPart


class Odd(ToolEnv):
    """Does what environments may do."""

    max_turns = 5
    takes_words = True
    longest_step_s = 2.0

    def __init__(self, *, size=1, max_turns=None):
        super().__init__(max_turns=max_turns)
        self._size = size

    def start(self, task):
        return (Message("user", (TextPart("look"), ImagePart("aGk="))),)

    @tool
    def award_parts(self) -> str:
        """Award."""
        self.award(0.25, "step", "process")
        self.award(1.0)
        return "awarded"

    @tool
    def crash(self) -> str:
        """Crash."""
        raise RuntimeError("the wheel came off")

    @tool
    def refuse_it(self) -> str:
        """Refuse."""
        raise ToolError("not now", "too_early")

    @tool
    def give_up(self) -> str:
        """End the process."""
        os._exit(3)

    def own_info(self):
        return {"size": self._size, "pair": (1, 2)}


class Ends(Env):
    """Ends the episode because of what the policy did."""

    def start(self, task):
        return "?"

    def respond(self, action):
        raise ToolError("that was too much", "spent")


class Slow(ToolEnv):
    """Takes its time."""

    is_blocking = True

    def start(self, task):
        return "?"

    @tool
    def wait(self, seconds: float) -> str:
        """Wait."""
        time.sleep(seconds)
        return "done"


class Exits(Env):
    """Ends the interpreter."""

    def start(self, task):
        sys.exit(0)


register("Odd-v0", Odd)
register("Ends-v0", Ends)
register("Exits-v0", Exits)
register("Slow-v0", Slow)
'''


ALONE = """
from agentgym import Env, register


class Alone(Env):
    def start(self, task):
        return "?"

    def respond(self, action):
        self.finish(1.0)
        return "!"


register("Alone-v0", Alone, max_turns=2)
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN, encoding="utf-8")
    (path.parent / "alone.py").write_text(ALONE, encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def server(own: str) -> Iterator[EnvServer]:
    names = [HOUSE, "agentgym/Maze-v0", f"{own}:Odd-v0", *(f"{own}:{name}-v0" for name in ("Ends", "Exits", "Slow"))]
    names.append(f"{Path(own).with_name('alone.py')}:Alone-v0")
    with env_server(*names, "--step-timeout-s", "1") as started:
        yield started


def without_times(trajectory: Trajectory) -> Any:
    return [replace(turn, latency=None) for turn in trajectory.turns]  # type: ignore[arg-type]


def played(url: str = "", *, tasks: int = 100, **kwargs: Any) -> list[Trajectory]:
    found = {**kwargs, "url": url} if url else kwargs
    groups = agentgym.collect_rollouts(HOUSE, "random", tasks=tasks, kwargs=found, seed=3)
    return [one for group in groups for one in group.trajectories]


def test_episodes_of_a_hundred_seeds_are_equal_though_the_connection_is_cut(server: EnvServer) -> None:
    local = played(num_objects=3, max_turns=12)
    channel = channel_module.channel_to(server.url, "")
    before, is_over, rng = channel.num_reconnects, threading.Event(), random.Random(0)

    def cut() -> None:
        while not is_over.wait(rng.uniform(0.005, 0.05)):
            channel.thread.loop.call_soon_threadsafe(channel.drop_connection)

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        remote = played(server.url, num_objects=3, max_turns=12)
    finally:
        is_over.set()
        cutter.join()
    assert channel.num_reconnects > before + 3
    assert [without_times(one) for one in remote] == [without_times(one) for one in local]
    assert [one.status for one in remote] == [one.status for one in local]
    assert [one.task_type for one in remote] == [one.task_type for one in local]
    assert all(one.env_id == HOUSE for one in remote)


def test_a_reset_and_a_step_by_hand(server: EnvServer) -> None:
    local, remote = agentgym.make(HOUSE, num_objects=3), agentgym.make(HOUSE, num_objects=3, url=server.url)
    assert isinstance(remote, RemoteEnv) and remote.tools == local.tools and remote.max_turns == local.max_turns
    for split in ("train", "valid", "test"):
        here, there = local.tasks(split), remote.tasks(split)
        assert len(here) == len(there) and here[700].content_hash == there[700].content_hash
    for seed in (0, 7):
        assert local.reset(seed=seed) == remote.reset(seed=seed)
        while True:
            assert local.state_key() == remote.state_key() and local.task_type == remote.task_type
            assert local.admissible_actions() == remote.admissible_actions() and local.oracle() == remote.oracle()
            mine, theirs = local.step(local.oracle()), remote.step(remote.oracle())
            assert mine == theirs
            if mine[2]:
                break
    remote.close()
    local.close()


def test_what_an_environment_may_say(server: EnvServer, own: str) -> None:
    env = agentgym.make("Odd-v0", url=server.url, size=3)
    assert env.takes_words and env.longest_step_s == 2.0 and env.max_turns == 5
    observation, _ = env.reset(seed=1)
    assert observation[0].content[1].png_base64 == "aGk="  # type: ignore[union-attr]
    _, reward, _, _, info = env.step(ToolCall("award_parts"))
    assert reward == 1.25 and info["size"] == 3 and info["pair"] == [1, 2]
    assert info["reward_parts"][0] == RewardPart("step", 0.25, agentgym.RewardRole.PROCESS)
    replies, *_, info = env.step(ToolCall("refuse_it"))
    assert replies[0].result.error_type == "too_early" and not info["is_valid"]  # type: ignore[union-attr]
    for _ in range(3):
        *_, truncated, info = env.step(ToolCall("award_parts"))
    assert truncated and info["success"]
    with pytest.raises(UsageError, match=r"no task 'train--1'|no task"):
        env.reset(options={"task": "train--1"})
    env.close()
    ends = agentgym.make("Ends-v0", url=server.url)
    ends.reset(seed=0)
    with pytest.raises(ToolError, match="too much") as raised:
        ends.step(Message("assistant", "x"))
    assert raised.value.error_type == "spent"


def test_failures_are_the_infrastructures(server: EnvServer, own: str) -> None:
    def crashes() -> ToolCall:
        return ToolCall("crash")

    def waits() -> ToolCall:
        return ToolCall("wait", {"seconds": 3.0})

    for name, policy, told in (
        (f"{own}:Odd-v0", crashes, "the wheel came off"),
        (f"{own}:Slow-v0", waits, "not done after 1 s"),
        (f"{own}:Exits-v0", crashes, "SystemExit: 0"),  # of the episode, not of the server
    ):
        with pytest.raises(agentgym.AgentGymError, match=told):
            agentgym.collect_rollouts(name, policy, kwargs={"url": server.url})
    assert agentgym.make("Ends-v0", url=server.url).reset(seed=0)


def test_an_environment_that_only_the_server_has(server: EnvServer, tmp_path: Path) -> None:
    words = lambda: "hello"  # noqa: E731
    with pytest.raises(UnknownNameError, match="Alone-v0"):
        agentgym.evaluate("Alone-v0", words, episodes=2, run_dir=tmp_path / "here")
    found = agentgym.evaluate("Alone-v0", words, episodes=2, kwargs={"url": server.url}, run_dir=tmp_path / "there")
    assert (found.success, found.summary.suite_or_env) == (1.0, "Alone-v0")
    (group,) = agentgym.collect_rollouts("Alone-v0", words, tasks=1, kwargs={"url": server.url})
    assert group.trajectories[0].success
    assert turn_limit("Alone-v0", {"url": server.url}) is None  # which training asks for before it begins


def test_the_conformance_kit_passes(server: EnvServer) -> None:
    report = check_env(lambda: agentgym.make(HOUSE, url=server.url), num_episodes=1)
    assert [one for one in report.failures if one.name != "leaks"] == []


def test_gymnasium_sees_an_environment(server: EnvServer) -> None:
    env = agentgym.make("agentgym/Maze-v0", url=server.url)
    assert isinstance(env, gymnasium.Env) and "Maze" in str(env.env_id)
    observation, _ = env.reset(seed=3)
    snapshot = env.snapshot()
    first = env.step(env.oracle())
    env.restore(snapshot)
    assert env.step(env.oracle()) == first and observation


def test_wrong_addresses_names_and_arguments(server: EnvServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match=r"environment of this server: 'agentgym/Shop-v0'.*Household"):
        agentgym.make("agentgym/Shop-v0", url=server.url)
    with pytest.raises(UnknownNameError, match="num_objekts"):
        agentgym.make(HOUSE, url=server.url, num_objekts=3)
    with pytest.raises(UsageError, match="expected ws://HOST:PORT"):
        agentgym.make(HOUSE, url="ws:// nothing")
    monkeypatch.setattr(channel_module, "PATIENCE_S", 0.3)
    with pytest.raises(EnvError, match=r"ws://127\.0\.0\.1:9 for 0\.3 s; nothing listens there: the server has ended"):
        agentgym.make(HOUSE, url="ws://127.0.0.1:9")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"\[serve\]'"):
        agentgym.make(HOUSE, url=server.url)


def test_a_token_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with env_server("agentgym/Maze-v0", token="right") as server:
        monkeypatch.setenv("AGENTGYM_STATE", str(tmp_path))  # without the file that the server keeps for its user
        for token in ("", "wrong"):
            monkeypatch.setenv("AGENTGYM_SERVER_TOKEN", token)
            with pytest.raises(UsageError, match="refused"):
                agentgym.make("agentgym/Maze-v0", url=server.url, size=2)
        (tmp_path / "token").write_text("right\n")
        env = agentgym.make("agentgym/Maze-v0", url=server.url, size=2, token_file=str(tmp_path / "token"))
        env.reset(seed=0)
        env.close()


def test_errors_keep_their_class_on_the_way() -> None:
    for error in (ToolError("no", "x"), UsageError("u"), wire.BusyError("b", 3.0), wire.NoSessionError("n")):
        again = wire.error_from_json(wire.decode(wire.encode(wire.error_as_json(error))))
        assert type(again) is type(error) and str(again) == str(error)
    assert type(wire.error_from_json(wire.error_as_json(ZeroDivisionError("x")))) is EnvError
    assert wire.read(Task, {"id": "a", "split": "test", "seed": 1}).data == {}


def test_sampling_for_long_does_not_end_a_session() -> None:
    """The caller's thread is busy for longer than the idle time; the heartbeats are another thread's."""
    with env_server("agentgym/Maze-v0", "--idle-timeout-s", "1") as server:
        env = agentgym.make("agentgym/Maze-v0", url=server.url, size=2)
        env.reset(seed=0)
        time.sleep(3)
        env.step(env.oracle())
        env.close()


def test_a_server_that_dies_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "PATIENCE_S", 0.5)
    with env_server(HOUSE) as first, env_server(HOUSE) as second:
        killer = threading.Timer(0.15, first.kill)
        killer.start()
        both = played(f"{first.url},{second.url}", tasks=60, num_objects=3, max_turns=12)
        killer.join()
        assert [without_times(one) for one in both] == [
            without_times(one) for one in played(tasks=60, num_objects=3, max_turns=12)
        ]


def test_an_environment_is_reset_after_a_restart_of_its_server() -> None:
    with env_server("agentgym/Maze-v0") as first:
        env = agentgym.make("agentgym/Maze-v0", url=first.url, size=2)
        begun = env.reset(seed=0)
    with env_server("agentgym/Maze-v0", port=int(first.url.rpartition(":")[2])):
        with pytest.raises(EnvError, match="no such session: it was closed, idle too long, or lost in a restart"):
            env.step(ToolCall("move", {"direction": "west"}))
        assert env.reset(seed=0) == begun
        env.step(env.oracle())
        env.close()


def test_idle_environments_give_their_sessions_to_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool has more environments than the server has sessions; those that had played kept theirs."""
    monkeypatch.setattr(channel_module, "BUSY_WAIT_S", 10.0)  # not the ten minutes after which the others failed
    with env_server("agentgym/Maze-v0", "--max-sessions", "2") as server:
        groups = agentgym.collect_rollouts(
            "agentgym/Maze-v0", "oracle", tasks=7, kwargs={"url": server.url, "size": 2}, num_envs=5
        )
        assert [group.trajectories[0].success for group in groups] == [True] * 7
        assert [group.trajectories[0].num_retries for group in groups] == [0] * 7


def test_waiting_for_a_full_server_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(channel_module, "BUSY_WAIT_S", 1.5)
    with env_server("agentgym/Maze-v0", "--max-sessions", "1") as server:
        first, *others = (agentgym.make("agentgym/Maze-v0", url=server.url, size=2) for _ in range(3))
        first.reset(seed=0)
        for env in others:
            with pytest.raises(EnvError, match=r"1 sessions, as many as its --max-sessions, for 1\.5 s"):
                env.reset(seed=0)
        first.close()
    (told,) = (record.getMessage() for record in caplog.records if record.name == channel_module.__name__)
    assert told.endswith("the server has 1 sessions, as many as its --max-sessions; waiting up to 1.5 s for one")
