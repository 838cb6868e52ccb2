"""The network of one browser context: a proxy on the loopback interface that reaches only the episode's sites.

We use a proxy rather than Playwright's request interception, since it also sees the requests of web sockets, workers,
beacons and prefetching, and costs no round trip through the driver. A request to another host gets a page that says so,
and the agent is told.

A page of an error is a page, and only a dead site makes an episode void. Otherwise an agent could escape bad episodes
by a request on which a site crashes. So when one fails, the first request that the site had answered is made once more.
"""

from __future__ import annotations

import asyncio
import errno
import html
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus

import h11

from agentgym.envs.gui.site import Request, Response, Site, Sites, Upstream
from agentgym.errors import EnvError, InfrastructureError, error_text

_CHUNK_BYTES = 1 << 16
_MOST_BODY_BYTES = 16 << 20
_HOP_BY_HOP = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
    | {b"proxy-authorization", b"proxy-authenticate"}
)
_SERVER_ERROR = 500
_CONTROL_S = 10.0
_NO_REQUESTS_FAULT = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_BROKEN = Response(status=502, body=b"<!doctype html><title>Error</title><h1>The site broke the connection</h1>")
_NO_PROXY_CLIENT = Response(status=403, content_type="text/plain", body=b"this is a proxy of one browser")
_NO_FAVICON = Response(status=404, content_type="text/plain")


class EpisodeNetwork:
    """A proxy on a port of its own; it refuses requests before :meth:`open_to` and after :meth:`close`."""

    def __init__(self) -> None:
        self._sites: Sites = {}
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._good: dict[Upstream, h11.Request] = {}  # the first request that a server answered
        self._good_here: dict[str, Request] = {}  # the same of sites in this process, by host
        self.refused: list[str] = []
        """Requested hosts that are not among the sites, in order and without repetition."""
        self.failure: EnvError | None = None
        """The reason why a site is dead: it also fails on a request that it had answered before."""

    async def start(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    @property
    def url(self) -> str:
        """Address at which the browser finds the proxy."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def open_to(self, sites: Sites) -> None:
        """Make these sites reachable, and no others."""
        self._sites = dict(sites)
        self._good, self._good_here = {}, {}

    def knows(self, host: str) -> bool:
        """Return True if a host (``name`` or ``name:port``) is one of the sites."""
        return host in self._sites

    @property
    def hosts(self) -> tuple[str, ...]:
        """The sites' hosts."""
        return tuple(self._sites)

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        self._sites = {}
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._open):
            writer.close()

    # ---------------------------------------------------------------------------------------------------- private

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            await self._converse(reader, writer)
        except _SiteLostError as error:
            await self._judge(error)
            if not error.num_bytes:
                with suppress(OSError):
                    await _send_alone(writer, _BROKEN)
        except (OSError, asyncio.IncompleteReadError, h11.ProtocolError):
            pass  # the browser closed the connection, or sent something that is not HTTP
        finally:
            self._open.discard(writer)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
        connection = h11.Connection(h11.SERVER)
        while True:
            head = await _next_event(connection, reader)
            if not isinstance(head, h11.Request):
                return
            if head.method == b"CONNECT":
                await self._tunnel(head, reader, writer, connection)
                return
            if not head.target.startswith((b"http://", b"https://")):  # no client of a proxy: a page of another site
                await _send_alone(writer, _NO_PROXY_CLIENT)
                return
            host, body = _host_of(head), await _body_of(connection, reader)
            site = self._sites.get(host)
            if isinstance(site, Upstream):
                status = await _forward(site, head, body, writer, self._judge)
                if head.method == b"GET" and status < _SERVER_ERROR:
                    self._good.setdefault(site, head)
                return  # the upstream's answer ended the connection
            response = await self._answer(site, host, head, body)
            await _send(connection, writer, head, response)
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()

    async def _answer(self, site: Site | None, host: str, head: h11.Request, body: bytes) -> Response:
        if site is None:
            self._refuse(host)
            return _refusal(host, self.hosts)
        url = head.target.decode()
        request = Request(
            method=head.method.decode(),
            url=url,
            headers={name.decode(): value.decode(errors="replace") for name, value in head.headers},
            body=body,
        )
        try:
            response = await site.answer(request)
        except Exception as error:
            said = f"site {host}, {request.method} {request.path}: {error_text(error)}"
            try:
                if _is_of_the_machine(error):
                    raise
                await site.answer(self._good_here.get(host, request))
            except Exception:
                self.failure = EnvError(said)
            else:
                _tell(said)
            return Response(status=500, body=b"<h1>Internal server error</h1>")
        if request.method == "GET":
            self._good_here.setdefault(host, request)
        return _NO_FAVICON if response.status == 404 and request.path == "/favicon.ico" else response

    async def _judge(self, lost: _SiteLostError) -> None:
        """Set the failure if a server that failed on a request also fails on one that it had answered before."""
        site, good = lost.site, self._good.get(lost.site)
        try:
            async with asyncio.timeout(_CONTROL_S):
                if good is None or await _status_of(site, good) >= _SERVER_ERROR:
                    self.failure = EnvError(f"a site of the task was lost: {lost}")
                    return
        except (_SiteLostError, TimeoutError):
            self.failure = EnvError(f"a site of the task was lost: {lost}")
            return
        _tell(str(lost))

    async def _tunnel(
        self, head: h11.Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: h11.Connection
    ) -> None:
        """Pass bytes through in both directions, as web sockets need; only to servers among the sites."""
        host = head.target.decode().removesuffix(":80")
        site = self._sites.get(host)
        if not isinstance(site, Upstream):
            if site is None:
                self._refuse(host)
            writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            await writer.drain()
            return
        there, back = await _connected(site)
        try:
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            back.write(connection.trailing_data[0])
            await asyncio.gather(_pump(_chunks(reader), back), _pump(_sent_by(site, there), writer))
        finally:
            back.close()

    def _refuse(self, host: str) -> None:
        if host not in self.refused:
            self.refused.append(host)


def _refusal(host: str, known: tuple[str, ...]) -> Response:
    text = f"{html.escape(host)} cannot be reached: it is not part of this task. Sites: {html.escape(', '.join(known))}"
    body = f"<!doctype html><title>Blocked</title><h1>Blocked</h1><p>{text}</p>"
    return Response(status=403, body=body.encode())


def _host_of(head: h11.Request) -> str:
    """Return the host in the absolute URL that a proxy is asked for."""
    scheme, _, rest = head.target.decode(errors="replace").partition("://")
    host = rest.partition("/")[0].partition("?")[0].lower().rpartition("@")[2]
    return host.removesuffix(":80") if scheme == "http" else ""


async def _next_event(connection: h11.Connection, reader: asyncio.StreamReader) -> object:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await reader.read(_CHUNK_BYTES))
    return event


async def _body_of(connection: h11.Connection, reader: asyncio.StreamReader) -> bytes:
    body = b""
    while isinstance(event := await _next_event(connection, reader), h11.Data):
        body += bytes(event.data)
        if len(body) > _MOST_BODY_BYTES:
            raise h11.RemoteProtocolError("a request's body is too large")
    return body


async def _send_alone(writer: asyncio.StreamWriter, response: Response) -> None:
    """Send a response outside of a connection's protocol, which ends with it."""
    status = f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"
    head = f"{status}\r\ncontent-type: {response.content_type}\r\nconnection: close\r\n"
    writer.write(head.encode() + b"content-length: %d\r\n\r\n%s" % (len(response.body), response.body))
    await writer.drain()


async def _send(
    connection: h11.Connection, writer: asyncio.StreamWriter, head: h11.Request, response: Response
) -> None:
    headers = {
        "content-type": response.content_type,
        "content-length": str(len(response.body)),
        "cache-control": "no-store",
        **{name.lower(): value for name, value in response.headers.items()},
    }
    sent = connection.send(h11.Response(status_code=response.status, headers=list(headers.items()))) or b""
    if head.method != b"HEAD":
        sent += connection.send(h11.Data(data=response.body)) or b""
    writer.write(sent + (connection.send(h11.EndOfMessage()) or b""))
    await writer.drain()


async def _forward(
    site: Upstream,
    head: h11.Request,
    body: bytes,
    writer: asyncio.StreamWriter,
    judge: Callable[[_SiteLostError], Awaitable[None]],
) -> int:
    """Forward a request to a server, stream its answer back, and return the status; an error is judged beforehand."""
    reader, there = await _connected(site)
    status = 0
    try:
        await _ask(there, head, body)
        async for chunk in _answer_of(site, reader, head.method):
            if not status and (status := _status_in(chunk)) >= _SERVER_ERROR:
                target = head.target.decode(errors="replace")[:200]
                await judge(_SiteLostError(site, f"{site.host}:{site.port} answers {target} with status {status}"))
            writer.write(chunk)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()
    finally:
        there.close()
    return status


async def _status_of(site: Upstream, head: h11.Request) -> int:
    """Make a request again, and return the status of its answer.

    Raises:
        _SiteLostError: there is no complete answer.
    """
    reader, there = await _connected(site)
    status = 0
    try:
        await _ask(there, head, b"")
        async for chunk in _answer_of(site, reader, head.method):
            status = status or _status_in(chunk)
    finally:
        there.close()
    return status


async def _ask(there: asyncio.StreamWriter, head: h11.Request, body: bytes) -> None:
    path = b"/" + head.target.partition(b"://")[2].partition(b"/")[2]
    headers = [(name, value) for name, value in head.headers if name not in _HOP_BY_HOP]
    lines = [b"%s: %s\r\n" % pair for pair in headers if pair[0] != b"content-length"]
    length = b"content-length: %d\r\n" % len(body) if body or head.method in (b"POST", b"PUT") else b""
    there.write(b"%s %s HTTP/1.1\r\n%s%sconnection: close\r\n\r\n" % (head.method, path, b"".join(lines), length))
    there.write(body)
    with suppress(ConnectionError):  # it may answer before it has read a body; if not, reading says so
        await there.drain()


def _status_in(chunk: bytes) -> int:
    """Return the status that an answer begins with; 200 for an answer of another protocol."""
    words = chunk[:40].split()
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() else 200


def _is_of_the_machine(error: Exception) -> bool:
    if isinstance(error, InfrastructureError | MemoryError):
        return True
    return isinstance(error, OSError) and error.errno in _NO_REQUESTS_FAULT


def _tell(said: str) -> None:
    warnings.warn(f"{said}; the site answers other requests, so the agent sees a page of an error", stacklevel=2)


class _SiteLostError(Exception):
    """A server among the sites refused or broke a connection, or answered with an error of its own."""

    def __init__(self, site: Upstream, said: str, num_bytes: int = 0) -> None:
        super().__init__(said)
        self.site, self.num_bytes = site, num_bytes


async def _connected(site: Upstream) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_connection(site.host, site.port)
    except OSError as error:
        raise _SiteLostError(site, f"{site.host}:{site.port} cannot be reached ({error})") from error


async def _sent_by(site: Upstream, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    num_bytes = 0
    try:
        async for chunk in _chunks(reader):
            num_bytes += len(chunk)
            yield chunk
    except OSError as error:
        raise _SiteLostError(site, f"{site.host}:{site.port} broke the connection ({error})", num_bytes) from error


async def _answer_of(site: Upstream, reader: asyncio.StreamReader, method: bytes) -> AsyncIterator[bytes]:
    """Yield a server's answer to one request in pieces.

    Raises:
        _SiteLostError: it ends before it is complete.
    """
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method=method, target=b"/", headers=[(b"host", b"site"), (b"connection", b"close")]))
    parser.send(h11.EndOfMessage())
    num_bytes, is_followed = 0, True
    async for chunk in _sent_by(site, reader):
        yield chunk
        num_bytes += len(chunk)
        is_followed = is_followed and _follows(parser, chunk)
    is_cut = is_followed and not _follows(parser, b"") and parser.their_state is h11.ERROR
    if not num_bytes or is_cut:
        said = f"{site.host}:{site.port} closed the connection after {num_bytes} bytes of an answer"
        raise _SiteLostError(site, said, num_bytes)


def _follows(parser: h11.Connection, chunk: bytes) -> bool:
    """Hand a piece to a parser; return False if it is no HTTP that the parser knows, which browsers may still read."""
    try:
        parser.receive_data(chunk)
        while parser.next_event() not in (h11.NEED_DATA, h11.PAUSED):
            if parser.their_state in (h11.DONE, h11.CLOSED):
                return True
    except h11.ProtocolError:
        return False
    return True


async def _pump(chunks: AsyncIterator[bytes], writer: asyncio.StreamWriter) -> None:
    async for chunk in chunks:
        writer.write(chunk)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while chunk := await reader.read(_CHUNK_BYTES):
        yield chunk
