"""Environments that ask services, and the few episodes of them that are played without being asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from agentgym.env.env import Env

LIVE_EPISODES: Final = 5
"""Most episodes of such an environment that are played for a tokenizer."""
LIVE_DEMOS: Final = 50
"""Most episodes of random calls in such an environment, as demonstrations."""

_open: list[dict[str, None]] = []  # what each connections() has found; audit hooks cannot be removed
_hooked: list[bool] = []


@contextmanager
def connections() -> Iterator[dict[str, None]]:
    """Collect the addresses to which this process connects in the ``with`` block, as keys such as ``127.0.0.1:80``.

    Child processes and sockets of files are not seen.
    """
    if not _hooked:
        sys.addaudithook(_note)
        _hooked.append(True)
    found: dict[str, None] = {}
    _open.append(found)
    try:
        yield found
    finally:
        _open.remove(found)


def service_of(env: Env, found: dict[str, None]) -> str:
    """Return the service that an environment asks, for messages; empty if it asks none.

    Args:
        env: the environment. Its :attr:`~agentgym.env.env.Env.is_live` comes first.
        found: where this process connected while an episode was played.
    """
    if env.is_live is False:
        return ""
    return ", ".join(list(found)[:3]) or ("a live service" if env.is_live else "")


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event != "socket.connect" or not _open:
        return
    address = arguments[1]
    if isinstance(address, tuple) and len(address) >= 2:  # of the internet; other families have texts
        for found in _open:
            found[f"{address[0]}:{address[1]}"] = None
