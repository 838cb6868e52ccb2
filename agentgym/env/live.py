"""Environments that ask services, and the few episodes of them that are played without being asked for."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from weakref import WeakSet

from agentgym.env.env import Env

LIVE_EPISODES: Final = 5
"""Most episodes of such an environment that are played for a tokenizer."""
LIVE_DEMOS: Final = 50
"""Most episodes of random calls in such an environment, as demonstrations."""

_open: list[Connections] = []  # what collects now; audit hooks cannot be removed
_playing: ContextVar[tuple[Connections, ...]] = ContextVar("_playing", default=())
_hooked: list[bool] = []


class Connections:
    """Addresses to which an environment connects while it is played, as keys of ``found`` such as ``127.0.0.1:80``.

    Counted are the connections of the context that plays, also in loops of other threads that do its work, and those of
    threads that began after this object was made. Other threads were there before, and what they ask is not the
    environment's: a tracker's, say. Child processes and sockets of files are not seen.
    """

    def __init__(self) -> None:
        self.found: dict[str, None] = {}
        self._others = WeakSet(threading.enumerate())

    @contextmanager
    def collected(self) -> Iterator[dict[str, None]]:
        """Collect those of the ``with`` block, which may be entered several times."""
        if not _hooked:
            sys.addaudithook(_note)
            _hooked.append(True)
        _open.append(self)
        token = _playing.set((*_playing.get(), self))
        try:
            yield self.found
        finally:
            _playing.reset(token)
            _open.remove(self)

    def add(self, address: str) -> None:
        """Add an address to which this thread connects, if it plays."""
        if self in _playing.get() or threading.current_thread() not in self._others:
            self.found[address] = None


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
        for connections in [*_open]:
            connections.add(f"{address[0]}:{address[1]}")
