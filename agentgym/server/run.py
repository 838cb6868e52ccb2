"""The main loop of an environment server, with a graceful shutdown."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

import uvicorn

from agentgym.remote import wire
from agentgym.server.app import make_app
from agentgym.server.sessions import Sessions
from agentgym.tools.retrieval.header_limit import PunctualHTTP
from agentgym.web_guard import Access, WebGuard


class DrainingServer(uvicorn.Server):
    """A server that, after SIGTERM, opens no more sessions and waits for the open ones.

    Args:
        drain_s: seconds to wait until clients have closed their sessions; a second signal ends the wait.
        say: function that tells a person what the server waits for.
    """

    def __init__(self, config: uvicorn.Config, sessions: Sessions, drain_s: float, say: Callable[[str], None]) -> None:
        super().__init__(config)
        self._sessions, self._drain_s, self._say = sessions, drain_s, say

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain at the first SIGTERM. Stop at once at Ctrl-C or a second signal."""
        if sig == signal.SIGTERM and not self._sessions.is_draining and self._drain_s > 0:
            self._sessions.is_draining = True
            self._drain = asyncio.get_running_loop().create_task(self._wait_for_sessions())
        else:
            super().handle_exit(sig, frame)

    async def _wait_for_sessions(self) -> None:
        until = time.monotonic() + self._drain_s
        try:
            if count := len(self._sessions):
                self._say(f"ends when its sessions ({count}) are closed, or in {self._drain_s:g} s; Ctrl-C ends it now")
            while len(self._sessions) and time.monotonic() < until:
                await asyncio.sleep(0.05)
        finally:  # also if nobody reads what it says
            self.should_exit = True


def serve(
    listening: socket.socket, sessions: Sessions, access: Access, drain_s: float, say: Callable[[str], None]
) -> None:
    """Serve on a bound socket until SIGTERM or Ctrl-C.

    The app checks the token itself, since agents have tokens of their own.
    """
    config = uvicorn.Config(
        WebGuard(make_app(sessions, access.token), replace(access, token="")),
        http=PunctualHTTP,
        ws="websockets-sansio",
        ws_max_size=wire.MAX_FRAME_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=20.0,
        ws_ping_timeout=60.0,
        log_level="warning",
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=64 * 1024,
        backlog=4096,
    )
    DrainingServer(config, sessions, drain_s, say).run(sockets=[listening])
