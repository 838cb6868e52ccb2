"""Ports for servers that start later."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

_OF_CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _NUM_TRIES = 15_000, 100


def reachable(host: str, port: int) -> str:
    """Return host and port for the URL of a server that listens on an address.

    Example:
        >>> reachable("::1", 80), reachable("0.0.0.0", 80), reachable("gym.example", 80)
        ('[::1]:80', '127.0.0.1:80', 'gym.example:80')
    """
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_port(host: str = "127.0.0.1") -> int:
    """Return a free port that the system gives to no outgoing connection before the server listens.

    A vLLM server takes up to a minute to listen. The system assigns ports from a range to connections, and to programs
    that ask for any port. The returned port is below that range; another program can still choose it by number.

    Raises:
        OSError: no port is free.

    Example:
        >>> 15_000 <= free_port() < 65_536
        True
    """
    begin = int(_OF_CONNECTIONS.read_text().split()[0]) if _OF_CONNECTIONS.exists() else 32_768
    draw = random.SystemRandom()
    for _ in range(_NUM_TRIES):
        port = draw.randrange(_LOWEST, max(begin, _LOWEST + _NUM_TRIES))
        with socket.socket() as probe, suppress(OSError):
            probe.bind((host, port))
            return port
    raise OSError(f"no port from {_LOWEST} to {begin} is free")
