"""A connection to an environment server, shared by all sessions of a process.

The connection runs in a separate thread with its own event loop. Heartbeats therefore continue while the caller's loop
is busy sampling or training, and synchronous and asynchronous callers share the connection. If the connection drops, it
is opened again, and requests without a reply are sent again. Because of their sequence numbers, the server executes
each request once.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.frames import CloseCode

from agentgym.env.worker_thread import LoopThread, loop_thread
from agentgym.errors import EnvError, error_text
from agentgym.proxies import by_proxy, is_loopback
from agentgym.remote import wire
from agentgym.remote.wire import ForbiddenError, TooLargeError
from agentgym.server_tokens import TOKEN_VARIABLE, token_for

HEARTBEAT_S: Final = 5.0
PATIENCE_S: Final = 20.0
"""Seconds without a connection after which requests fail."""
BUSY_WAIT_S: Final = 600.0
"""Seconds to wait for a free session if every server is full."""
_FORBIDDEN: Final = (401, 403)
_REFUSED: Final = "; nothing listens there: the server has ended, or was not started"


class Channel:
    """A client of one server.

    Args:
        url: ``ws://`` or ``wss://`` with host and port.
        token: the control token; empty to find it by :func:`~agentgym.server_tokens.token_for`.
    """

    def __init__(self, url: str, token: str, thread: LoopThread) -> None:
        self.url, self.thread = url, thread
        self.dead_until = 0.0
        """Time (``time.monotonic``) before which the server is not tried again."""
        self.num_reconnects = 0
        self._heard_at = 0.0
        """Time (``time.monotonic``) of the last frame from the server, or of the first attempt to connect."""
        self._token = token
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[bytes, asyncio.Future[Any]]] = {}
        self._outgoing: list[bytes] = []
        self._has_outgoing = asyncio.Event()
        self._sessions: set[str] = set()
        self._idle: dict[str, None] = {}
        """Sessions whose episode has ended, the oldest first. A reset opens another one if they are closed."""
        self._beat_s = HEARTBEAT_S
        self._is_sooner = asyncio.Event()
        self._connection: ClientConnection | None = None
        self._keeper: asyncio.Task[None] | None = None

    def submit(self, op: str, **fields: Any) -> Future[Any]:
        """Send a request from any thread. The future returns the reply's ``ok`` or raises its error."""
        return self.thread.submit(self.request(op, **fields))

    async def request(self, op: str, **fields: Any) -> Any:
        """Send a request from the channel's loop and return the reply's ``ok``.

        Raises:
            EnvError: the server cannot be reached or does not know the session.
            AgentGymError: the error in the server's reply.
        """
        number = next(self._numbers)
        sent = wire.encode({"id": number, "op": op, **fields})
        if len(sent) > wire.MAX_FRAME_BYTES // 2:
            raise TooLargeError(f"a request of {len(sent):,} bytes exceeds the limit of {wire.MAX_FRAME_BYTES // 2:,}")
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        session = fields.get("session", "")
        self._idle.pop(session, None)
        self._waiting[number] = (sent, reply)
        self._outgoing.append(sent)
        self._has_outgoing.set()
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep())
        try:
            found = await reply
        finally:
            self._waiting.pop(number, None)
        if op == "end_episode":
            self._idle[session] = None
        return found

    async def open(self, **fields: Any) -> Any:
        """Open a session.

        Raises:
            BusyError: the server is full or shutting down.
            AgentGymError: as :meth:`request`.
        """
        opened = await self.request("open", **fields)
        self._sessions.add(opened["session"])
        if (beat_s := opened["idle_timeout_s"] / 4) < self._beat_s:
            self._beat_s = beat_s
            self._is_sooner.set()
        return opened

    async def close_idle(self) -> bool:
        """Close the oldest session whose episode has ended. Return False if there is none.

        Environments that wait for their turn in a pool hold such sessions, while others wait for a session.
        """
        if not self._idle:
            return False
        await self.close_session(next(iter(self._idle)))
        return True

    async def close_session(self, session: str) -> None:
        """Close a session. A session that no longer exists counts as closed."""
        self._sessions.discard(session)
        with suppress(Exception):
            await self.request("close", session=session)

    def drop_connection(self) -> None:
        """Drop the connection, as a network failure would; for tests."""
        if self._connection is not None:
            self._connection.transport.abort()

    # ---------------------------------------------------------------------------------------------------- private

    async def _keep(self) -> None:
        """Keep a connection open as long as there are sessions or requests."""
        self._heard_at, reason = time.monotonic(), ""
        while self._waiting or self._sessions:
            token = self._token or token_for(self.url)  # at each attempt, since a server may come back with a new one
            headers = {"Authorization": f"Bearer {token}"} if token else None
            try:
                async with connect(
                    f"{self.url}/ws",
                    additional_headers=headers,
                    max_size=wire.MAX_FRAME_BYTES,
                    compression=None,
                    proxy=None if is_loopback(self.url) else True,
                ) as connection:
                    self._connection = connection
                    await self._converse(connection)
            except InvalidStatus as error:
                if error.response.status_code in _FORBIDDEN:
                    self._fail(ForbiddenError(_forbidden(self.url, token)))
                    return
            except (OSError, WebSocketException, TimeoutError, ImportError) as error:
                reason = _reason(error, by_proxy(self.url))
            except Exception as error:  # a fault of the client or of a package: nobody may be left waiting
                self._fail(EnvError(f"the connection to {self.url} failed: {error_text(error):.200}"))
                raise
            finally:
                self._connection = None
            self.num_reconnects += 1
            if time.monotonic() - self._heard_at > PATIENCE_S:
                self.dead_until = time.monotonic() + PATIENCE_S
                self._fail(EnvError(f"no connection to the environment server {self.url} for {PATIENCE_S:g} s{reason}"))
                return
            lost_s = time.monotonic() - self._heard_at
            await asyncio.sleep(min(1.0, max(0.02, lost_s / 2)))

    async def _converse(self, connection: ClientConnection) -> None:
        """Send and receive until the connection ends."""
        # Requests sent on an earlier connection may be lost; the server recognises those that it has executed.
        self._outgoing = [sent for sent, reply in self._waiting.values() if not reply.done()]
        self._has_outgoing.set()
        jobs = (self._receive(connection), self._send(connection), self._beat())
        tasks = [asyncio.create_task(work) for work in jobs]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:  # whichever fails: without it, requests would wait for ever
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self, connection: ClientConnection) -> None:
        async for frame in connection:
            self._heard_at, self.dead_until = time.monotonic(), 0.0
            for reply in wire.decode(frame):
                self._settle(reply)

    async def _send(self, connection: ClientConnection) -> None:
        """Send all requests since the last frame as one frame."""
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            frame, self._outgoing = self._outgoing, []
            if frame:
                for part in wire.joined_frames(frame):
                    await connection.send(part)

    async def _beat(self) -> None:
        """Send heartbeats, four per shortest idle time-out."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._beat_s):
                    await self._is_sooner.wait()
            self._is_sooner.clear()
            self._outgoing.append(wire.encode({"id": 0, "op": "heartbeat", "sessions": sorted(self._sessions)}))
            self._has_outgoing.set()

    def _settle(self, reply: dict[str, Any]) -> None:
        _, future = self._waiting.get(reply["id"], (b"", None))
        if future is None or future.done():
            return
        if "error" in reply:
            future.set_exception(wire.error_from_json(reply["error"]))
        else:
            future.set_result(reply.get("ok"))

    def _fail(self, error: Exception) -> None:
        self._sessions.clear()
        self._outgoing.clear()
        for _, future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(error)


def _forbidden(url: str, token: str) -> str:
    which = "the token" if token else "a client without a token"
    return (
        f"{url} refused {which}: set {TOKEN_VARIABLE} or token_file to what `agentgym serve` printed. A server also "
        "refuses names that it does not know; start it with --allow-host NAME"
    )


def _reason(error: Exception, by_proxy: str) -> str:
    """Return what is known about a failed connection, for the error."""
    if isinstance(error, ConnectionClosed) and error.sent is not None and error.sent.code == CloseCode.MESSAGE_TOO_BIG:
        return f"; it sends frames above {wire.MAX_FRAME_BYTES:,} bytes, as an older agentgym does"
    if by_proxy:
        return f"{by_proxy}; {error_text(error):.200}"
    return _REFUSED if f"Errno {errno.ECONNREFUSED}" in str(error) else ""


_channels: dict[tuple[str, str], Channel] = {}
_lock = threading.Lock()


def channel_to(url: str, token: str) -> Channel:
    """Return this process's channel to a server."""
    with _lock:
        thread = loop_thread("agentgym remote")
        found = _channels.get((url, token))
        if found is None or found.thread is not thread:
            found = _channels[url, token] = Channel(url, token, thread)
        return found
