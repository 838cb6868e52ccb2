"""Ports for servers that start later."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from agentgym import ports


def test_no_connection_is_given_the_port() -> None:
    begin = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(ports.free_port() < begin for _ in range(20))


def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    free = ports.free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        drawn = iter([taken.getsockname()[1], free])
        monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: next(drawn))
        assert ports.free_port() == free


def test_none_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: taken.getsockname()[1])
        with pytest.raises(OSError, match="no port from 15000 to"):
            ports.free_port()
