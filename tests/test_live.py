"""What an environment asks is told from what other threads of the process ask."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from agentgym.env.live import Connections
from agentgym.env.worker_thread import loop_thread


def connect(port: int) -> None:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        pass


class Other:
    """A thread that connects whenever it is told to, as a tracker's does."""

    def __init__(self) -> None:
        self.told, self.done = threading.Event(), threading.Event()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        self.told.wait(10)
        connect(9)
        self.done.set()

    def connect(self) -> None:
        self.told.set()
        assert self.done.wait(10)


@pytest.fixture
def other() -> Iterator[Other]:
    made = Other()
    yield made
    made.told.set()


def test_threads_of_others_are_not_counted(other: Other) -> None:
    connections = Connections()
    with connections.collected() as found:
        other.connect()
    assert found == {}


def test_the_thread_that_plays_is_counted() -> None:
    connections = Connections()
    with connections.collected():
        connect(7)
    connect(8)  # outside
    with connections.collected() as found:
        connect(9)
    assert [*found] == ["127.0.0.1:7", "127.0.0.1:9"]


def test_threads_that_it_starts_and_loops_that_work_for_it_are_counted() -> None:
    loop = loop_thread("test of live services").loop  # it ran before

    async def ask() -> None:
        connect(6)

    connections = Connections()
    with connections.collected() as found:
        asyncio.run_coroutine_threadsafe(ask(), loop).result(10)
        started = threading.Thread(target=connect, args=(5,))
        started.start()
        started.join(10)
    assert [*found] == ["127.0.0.1:6", "127.0.0.1:5"]
