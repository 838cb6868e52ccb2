"""The servers of a remote environment: each is tried in turn, and full ones are waited for together."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from agentgym.env.worker_thread import LoopThread
from agentgym.errors import EnvError, UsageError
from agentgym.remote import channel as limits
from agentgym.remote.channel import Channel, channel_to
from agentgym.remote.wire import BusyError
from agentgym.server_tokens import token_in

_URL = re.compile(r"wss?://[^\s/,]+")
_LOG: Final = logging.getLogger(limits.__name__)
_turns: Final = itertools.count()
_waited_for: set[str] = set()
"""Servers about which a warning has been printed."""


class Servers:
    """The servers that one ``url=`` names.

    Args:
        url: ``ws://HOST:PORT``, or several separated by commas.
        token_file: file with the control token; by default :func:`~agentgym.server_tokens.token_for` finds it.

    Raises:
        UsageError: an address is malformed, or the file cannot be read.
    """

    def __init__(self, url: str, token_file: str) -> None:
        urls = [one.strip().rstrip("/") for one in url.split(",") if one.strip()]
        if wrong := [one for one in urls if not _URL.fullmatch(one)]:
            raise UsageError(f"url={wrong[0]!r} is not an address of an environment server; expected ws://HOST:PORT")
        if not urls:
            raise UsageError("url is empty; expected ws://HOST:PORT")
        token = token_in(Path(token_file), "token_file") if token_file else ""
        self._channels = [channel_to(one, token) for one in urls]

    @property
    def urls(self) -> list[str]:
        """Addresses of the servers."""
        return [channel.url for channel in self._channels]

    @property
    def thread(self) -> LoopThread:
        """Thread of the connections."""
        return self._channels[0].thread

    def at(self, url: str) -> Channel | None:
        """Return the channel to a server, or None if it is not one of these."""
        return next((channel for channel in self._channels if channel.url == url), None)

    async def ask(self, op: str, fields: Mapping[str, Any]) -> Any:
        """Send a request that needs no session to the first server that answers."""
        for channel in (channels := self._by_turn()):
            try:
                return await asyncio.wrap_future(channel.submit(op, **fields))
            except EnvError:
                if channel is channels[-1]:
                    raise
        raise AssertionError

    async def open(self, fields: Mapping[str, Any], only: Channel | None = None) -> tuple[Channel, str]:
        """Open a session at the first server that has room, and return its channel and id.

        If every server that answers is full, close a session of this process whose episode has ended, or else wait.

        Args:
            fields: arguments of the request.
            only: the one server to use; None for any.

        Raises:
            EnvError: no server answers, or none has had room for :data:`~agentgym.remote.channel.BUSY_WAIT_S`.
            AgentGymError: the first server that answers refuses the request.
        """
        began = time.monotonic()
        while True:
            busy: list[tuple[Channel, BusyError]] = []
            for channel in (channels := [only] if only else self._by_turn()):
                if busy and channel.dead_until > time.monotonic():
                    continue  # trying it takes as long as finding out that it is dead
                try:
                    opened = await _in_its_thread(channel, channel.open(**fields))
                except BusyError as error:
                    busy.append((channel, error))
                except EnvError:
                    if channel is channels[-1] and not busy:
                        raise
                else:
                    return channel, opened["session"]
            await _room(busy, time.monotonic() - began)

    def _by_turn(self) -> list[Channel]:
        """Return the servers in the order of trying them: each is first equally often, unreachable ones are last."""
        first = next(_turns) % len(self._channels)
        turned = self._channels[first:] + self._channels[:first]
        now = time.monotonic()
        return sorted(turned, key=lambda channel: channel.dead_until > now)


async def _room(busy: list[tuple[Channel, BusyError]], waited_s: float) -> None:
    """Wait until one of the full servers may have room."""
    for channel, _ in busy:
        if await _in_its_thread(channel, channel.close_idle()):
            return
    wait_s = min(error.retry_after_s for _, error in busy)
    told = "; ".join(f"{channel.url}: {error}" for channel, error in busy)
    if waited_s + wait_s > limits.BUSY_WAIT_S:
        raise EnvError(f"{told}, for {limits.BUSY_WAIT_S:g} s") from busy[0][1]
    if not _waited_for.issuperset(channel.url for channel, _ in busy):
        _waited_for.update(channel.url for channel, _ in busy)
        _LOG.warning("%s; waiting up to %g s for one", told, limits.BUSY_WAIT_S)
    await asyncio.sleep(wait_s)


async def _in_its_thread(channel: Channel, work: Any) -> Any:
    return await asyncio.wrap_future(channel.thread.submit(work))
