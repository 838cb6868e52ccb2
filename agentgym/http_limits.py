"""HTTP clients that limit the size of responses, so that a peer cannot fill this machine's memory.

The clients ask for uncompressed responses and reject compressed ones, since a few kilobytes of gzip can expand to
gigabytes.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import httpx

from agentgym.errors import ConfigError
from agentgym.proxies import is_loopback

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024


def limited_client(*, max_bytes: int = MAX_ANSWER_BYTES, to: str = "", **settings: object) -> httpx.Client:
    """Return a client whose requests raise ``httpx.DecodingError`` if the response is compressed or above
    ``max_bytes``.

    Args:
        max_bytes: largest body of a response, in bytes.
        to: the one server of the client. Proxies of the environment's variables are not used on this machine.
        settings: arguments of :class:`httpx.Client`, except ``event_hooks``.

    Raises:
        ConfigError: the client cannot use the proxy of the environment's variables.
    """

    def limit(response: httpx.Response) -> None:
        _limit(response, max_bytes)

    with _named_proxy():
        return httpx.Client(**_unpacked(settings, to), event_hooks={"response": [limit]})


def limited_async_client(*, max_bytes: int = MAX_ANSWER_BYTES, to: str = "", **settings: Any) -> httpx.AsyncClient:
    """Return the asynchronous counterpart of :func:`limited_client`."""

    async def limit(response: httpx.Response) -> None:
        _limit(response, max_bytes)

    with _named_proxy():
        return httpx.AsyncClient(**_unpacked(settings, to), event_hooks={"response": [limit]})


@contextmanager
def _named_proxy() -> Iterator[None]:
    try:
        yield
    except (ImportError, ValueError) as error:  # a scheme that httpx does not know, or SOCKS without its package
        names = ", ".join(sorted(name for name in os.environ if name.lower().endswith("_proxy")))
        raise ConfigError(f"{error} (the proxy comes from {names or 'the system'})") from error


def _unpacked(settings: Mapping[str, Any], to: str) -> dict[str, Any]:
    if is_loopback(to):
        settings = {**settings, "trust_env": False}
    return {**settings, "headers": {**(settings.get("headers") or {}), "Accept-Encoding": "identity"}}


def _limit(response: httpx.Response, max_bytes: int) -> None:
    encoding = response.headers.get("content-encoding", "identity").lower()
    if encoding not in ("", "identity"):
        raise httpx.DecodingError(f"expected an uncompressed response, got encoding {encoding[:40]}")
    response.stream = _Counted(response.stream, max_bytes)


class _Counted(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A response body that raises an error above a number of bytes."""

    def __init__(self, stream: Any, max_bytes: int) -> None:
        self._stream, self._left, self._max_bytes = stream, max_bytes, max_bytes

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            yield self._counted(chunk)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield self._counted(chunk)

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _counted(self, chunk: bytes) -> bytes:
        self._left -= len(chunk)
        if self._left < 0:
            raise httpx.DecodingError(f"the response is larger than {self._max_bytes:,} bytes")
        return chunk
