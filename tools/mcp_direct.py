"""Connections to MCP servers on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client


@contextlib.asynccontextmanager
async def direct_streams(url: str) -> AsyncIterator[Any]:
    """Yield the streams of a server with streamable HTTP, without the proxy of the environment's variables."""
    timeout = httpx2.Timeout(30.0, read=300.0)  # mcp's own
    async with (
        httpx2.AsyncClient(timeout=timeout, trust_env=False) as http,
        streamable_http_client(url, http_client=http) as streams,
    ):
        yield streams
