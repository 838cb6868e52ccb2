"""A time limit for request headers, which uvicorn lacks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.auto import AutoHTTPProtocol

if TYPE_CHECKING:
    _Protocol = asyncio.Protocol  # AutoHTTPProtocol is one, which mypy cannot see
else:
    _Protocol = AutoHTTPProtocol

HEADER_TIMEOUT_S: Final = 10.0


class PunctualHTTP(_Protocol):
    """uvicorn's HTTP protocol, which also closes connections whose headers take longer than :data:`HEADER_TIMEOUT_S`.

    The time starts with the connection and again with the first byte of each later request. Without the limit, a client
    that sends its headers byte by byte could hold a connection for ever.
    """

    cycle: Any
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer of the first request."""
        super().connection_made(transport)
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        """Start or stop the timer, depending on whether the headers are complete."""
        super().data_received(data)
        if self.transport.get_protocol() is not self:  # a WebSocket from here on, which may be silent for hours
            self._stop_waiting()
        elif self.cycle is None or self.cycle.response_complete:
            self._await_headers()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_headers(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
