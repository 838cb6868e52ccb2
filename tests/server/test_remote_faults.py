"""Faults that a remote environment survives: full servers among several, draining ones, cancelled requests."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
import uvicorn
from testkit.env_servers import EnvServer, env_server

import agentgym
from agentgym.errors import EnvError, UsageError
from agentgym.remote import channel as channel_module
from agentgym.remote import wire
from agentgym.server.app import make_app
from agentgym.server.limits import ServerLimits
from agentgym.server.run import DrainingServer
from agentgym.server.sessions import Sessions
from agentgym.server.workers import Worker
from agentgym.types import ToolCall

MAZE = "agentgym/Maze-v0"
SLOW = '''
import asyncio
import time

from agentgym import ToolEnv, register, tool


class Slow(ToolEnv):
    """Waits as long as it is told to."""

    max_turns = 9

    def start(self, task):
        return "?"

    @tool
    async def wait(self, seconds: float) -> str:
        """Wait."""
        await asyncio.sleep(seconds)
        return "done"


class Blocks(ToolEnv):
    """The same in a thread."""

    is_blocking = True
    max_turns = 9

    def start(self, task):
        return "?"

    @tool
    def wait(self, seconds: float) -> str:
        """Wait."""
        time.sleep(seconds)
        return "done"


register("Slow-v0", Slow)
register("Blocks-v0", Blocks)
'''


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvServer]:
    path = tmp_path_factory.mktemp("slow") / "slow.py"
    path.write_text(SLOW, encoding="utf-8")
    with env_server(f"{path}:Slow-v0", f"{path}:Blocks-v0") as started:
        yield started


def filled(server: EnvServer) -> None:
    """Take the only session of a server."""
    httpx.post(f"{server.http}/sessions", json={"env": MAZE}, headers=server.headers, timeout=60).raise_for_status()


def test_of_two_servers_the_one_with_room_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "BUSY_WAIT_S", 0.0)  # waiting for the full one would fail
    with env_server(MAZE, "--max-sessions", "1") as full, env_server(MAZE) as free:
        filled(full)
        found = agentgym.evaluate(MAZE, "oracle", episodes=6, kwargs={"url": f"{full.url},{free.url}", "size": 2})
        assert found.success == 1.0 and found.summary.num_failed == 0


def test_a_draining_server_is_left_to_its_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "BUSY_WAIT_S", 0.0)
    with env_server(MAZE, "--drain-s", "60") as draining, env_server(MAZE) as free:
        filled(draining)
        draining.process.terminate()
        until = time.monotonic() + 10
        while (
            httpx.get(f"{draining.http}/health", timeout=60).json()["status"] != "draining" and time.monotonic() < until
        ):
            time.sleep(0.05)
        found = agentgym.evaluate(MAZE, "oracle", episodes=6, kwargs={"url": f"{draining.url},{free.url}", "size": 2})
        assert found.success == 1.0 and found.summary.num_failed == 0


def test_if_every_server_is_full_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "BUSY_WAIT_S", 0.0)
    with env_server(MAZE, "--max-sessions", "1") as first, env_server(MAZE, "--max-sessions", "1") as second:
        filled(first)
        filled(second)
        env = agentgym.make(MAZE, url=f"{first.url},{second.url}")
        with pytest.raises(EnvError, match="1 sessions, as many as") as raised:
            env.reset(seed=0)
        assert first.url in str(raised.value) and second.url in str(raised.value)


@pytest.mark.parametrize("name", ["Slow-v0", "Blocks-v0"])
def test_a_cancelled_step_is_followed_by_a_reset(slow: EnvServer, name: str) -> None:
    env = agentgym.make(name, url=slow.url)

    async def cancel_and_go_on() -> None:
        begun, _ = await env.areset(seed=0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(env.astep(ToolCall("wait", {"seconds": 20.0})), 0.3)
        with pytest.raises(EnvError, match="a request was cancelled before its answer; reset the environment"):
            await env.astep(ToolCall("wait", {"seconds": 0.0}))
        again, _ = await env.areset(seed=0)
        assert again == begun
        replies, *_ = await env.astep(ToolCall("wait", {"seconds": 0.0}))
        assert replies[0].text == "done"

    asyncio.run(asyncio.wait_for(cancel_and_go_on(), 15))
    env.close()


def test_a_cancelled_reset_is_followed_by_a_reset(slow: EnvServer) -> None:
    env = agentgym.make("Slow-v0", url=slow.url)

    async def cancel_and_go_on() -> None:
        for _ in range(5):
            reset = asyncio.ensure_future(env.areset(seed=0))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            reset.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reset
            await env.areset(seed=0)

    asyncio.run(asyncio.wait_for(cancel_and_go_on(), 15))
    env.close()


def test_an_interrupted_step_is_followed_by_a_reset(slow: EnvServer) -> None:
    """Ctrl-C in a notebook ends the wait, not the request on the server."""
    env = agentgym.make("Slow-v0", url=slow.url)
    env.reset(seed=0)
    timer = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        env.step(ToolCall("wait", {"seconds": 20.0}))
    timer.join()
    env.reset(seed=0)
    replies, *_ = env.step(ToolCall("wait", {"seconds": 0.0}))
    assert replies[0].text == "done"
    env.close()


def test_a_fault_of_the_client_leaves_nobody_waiting(slow: EnvServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def older_connect(url: str) -> None: ...

    monkeypatch.setattr(channel_module, "connect", older_connect)  # a package that lacks what is asked of it
    monkeypatch.setattr(channel_module, "_channels", {})
    with pytest.raises(EnvError, match=f"the connection to {slow.url} failed: TypeError: .*unexpected keyword"):
        agentgym.make("Slow-v0", url=slow.url).reset()


def test_a_reply_that_cannot_be_read_leaves_nobody_waiting(slow: EnvServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(frame: object) -> None:
        raise UsageError("no JSON")

    env = agentgym.make("Slow-v0", url=slow.url)
    monkeypatch.setattr(wire, "decode", unreadable)
    with pytest.raises(EnvError, match="failed: UsageError: no JSON"):
        env.reset()


def test_a_request_that_cannot_be_sent_leaves_nobody_waiting(slow: EnvServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection itself goes on, so only the task that sends knows."""

    def unsent(frames: object) -> None:
        raise MemoryError("no room for a frame")

    env = agentgym.make("Slow-v0", url=slow.url)
    monkeypatch.setattr(wire, "joined_frames", unsent)
    with pytest.raises(EnvError, match="failed: MemoryError: no room for a frame"):
        env.reset()


def test_a_worker_whose_answers_cannot_be_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(frame: object) -> None:
        raise UsageError("no JSON")

    async def main() -> None:
        worker = await Worker.start([MAZE], ServerLimits())
        monkeypatch.setattr("agentgym.server.workers.wire.decode", unreadable)
        for _ in range(2):
            with pytest.raises(EnvError, match="ended: its answers cannot be read: UsageError: no JSON"):
                await worker.ask(60.0, op="describe", env=MAZE, kwargs={})
        assert worker.is_retired
        await worker.begin_to_close()  # raises nothing

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_sweep_that_fails_is_told_and_the_next_one_is_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agentgym.server.app.REAP_EVERY_S", 0.0)
    sessions, swept = Sessions([MAZE], ServerLimits()), asyncio.Event()

    async def reap() -> int:
        if sessions.counts["errors"]:
            swept.set()
            return 0
        raise OSError("too many open files")

    async def main() -> None:
        app = make_app(sessions, "")
        async with app.router.lifespan_context(app):
            await swept.wait()

    monkeypatch.setattr(sessions, "reap", reap)
    with caplog.at_level("ERROR"):
        asyncio.run(asyncio.wait_for(main(), 30))
    assert "idle sessions could not be closed" in caplog.text and "too many open files" in caplog.text


def test_a_server_ends_although_nobody_reads_what_it_says() -> None:
    def closed(text: str) -> None:
        raise BrokenPipeError(text)

    async def main() -> None:
        sessions = Sessions([MAZE], ServerLimits())
        await sessions.ask({"op": "open", "env": MAZE, "kwargs": {}})
        server = DrainingServer(uvicorn.Config("nothing"), sessions, 60.0, closed)
        server.handle_exit(signal.SIGTERM, None)
        while not server.should_exit:
            await asyncio.sleep(0)
        await sessions.close_all()

    asyncio.run(asyncio.wait_for(main(), 30))
