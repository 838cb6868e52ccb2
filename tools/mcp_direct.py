"""Connections to MCP servers over HTTP: without a proxy on this machine, and with a user's headers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, TextIO

import httpx2
from mcp.client.streamable_http import streamable_http_client

from agentgym.proxies import is_loopback


@contextlib.asynccontextmanager
async def http_streams(url: str, headers: Mapping[str, str], log: TextIO) -> AsyncIterator[Any]:
    """Yield the streams of a server with streamable HTTP.

    Args:
        headers: headers of each request. They are not sent to another server, should this one redirect there.
        log: file for the status of refused messages, which the errors of ``mcp`` leave out.
    """
    timeout = httpx2.Timeout(30.0, read=300.0)  # mcp's own

    async def set_headers(request: httpx2.Request) -> None:
        for name, value in headers.items():
            request.headers.pop(name, None)
            if _origin(request.url) == _origin(httpx2.URL(url)):
                request.headers[name] = value

    async def note_status(response: httpx2.Response) -> None:
        if response.is_error and response.request.method == "POST":
            print(f"HTTP {response.status_code} {response.reason_phrase}", file=log)

    async with (
        httpx2.AsyncClient(
            timeout=timeout,
            trust_env=not is_loopback(url),
            follow_redirects=True,
            event_hooks={"request": [set_headers], "response": [note_status]},
        ) as http,
        streamable_http_client(url, http_client=http) as streams,
    ):
        yield streams


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
