"""HTTP servers on this machine with answers that a test chooses."""

from __future__ import annotations

import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FOREIGN = (
    {"Host": "evil.example"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Host": "evil.example", "Origin": "http://evil.example"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
)
"""Headers of requests that a page of another site makes, also under a name of its own that leads to this machine."""


@dataclass
class Reply:
    body: bytes | str = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "text/html; charset=utf-8"})


@dataclass
class Seen:
    """A received request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class QuietServer(ThreadingHTTPServer):
    """A server that prints no error if a client disconnects, so that tests see only the product's standard error."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(answer: Callable[[Seen], Reply], tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[Seen]]]:
    """Run a server in this context; yield its URL and the requests it receives."""
    seen: list[Seen] = []

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            seen.append(request)
            reply = answer(request)
            raw = reply.body.encode() if isinstance(reply.body, str) else reply.body
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(raw)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(raw)

        do_GET = do_POST = do_HEAD = _do

        def log_message(self, *_: object) -> None:
            pass

    server = QuietServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
