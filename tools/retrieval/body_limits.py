"""Limits of the size and the duration of request bodies in a web app."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

MAX_BODY_BYTES: Final = 1024 * 1024
BODY_TIMEOUT_S: Final = 10.0

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Event, Receive, Send], Awaitable[None]]


class BodyLimits:
    """An ASGI app that reads each body completely, within limits, before it calls another app.

    It answers bodies above the size with 413 and slow senders with 408.

    Args:
        max_bytes: largest body; chunked bodies, which announce no length, are counted while they arrive.
        timeout_s: seconds for the whole body.
    """

    def __init__(self, app: App, max_bytes: int = MAX_BODY_BYTES, timeout_s: float = BODY_TIMEOUT_S) -> None:
        self._app, self._max_bytes, self._timeout_s = app, max_bytes, timeout_s

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._body(receive)
        except TimeoutError:
            await _refuse(send, 408, f"the body took over {self._timeout_s:g} s")
            return
        if body is None:
            await _refuse(send, 413, f"the body is larger than {self._max_bytes:,} bytes")
            return
        waiting: list[Event] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Event:
            return waiting.pop() if waiting else await receive()

        await self._app(scope, replay, send)

    async def _body(self, receive: Receive) -> bytes | None:
        """Return the body, or None if it is too large."""
        body = bytearray()
        while True:
            event = await receive()
            body += event.get("body", b"")
            if len(body) > self._max_bytes:
                return None
            if not event.get("more_body", False):
                return bytes(body)


async def _refuse(send: Send, status: int, message: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"detail": message}).encode()})
