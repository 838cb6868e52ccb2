"""A guard before every web server of agentgym: other web sites must not reach it through a user's browser.

A page of any site may open WebSockets and send requests to ``127.0.0.1`` from the browser that shows it. Browsers do
not apply CORS to WebSockets, nor to requests that look like forms. With DNS rebinding, a page's own name leads to
``127.0.0.1``, and the browser takes the local server for the page's own. The guard rejects both:

* the header ``Host`` must name this server, so that a foreign name that leads here is no way in;
* the header ``Origin``, which browsers add, must be the server's own origin; programs send none;
* a request with a body must have the content type JSON, which other sites cannot send without asking first;
* where there is a token, every path but the open ones needs it.

The file imports the standard library alone, so that servers in other Python environments (vLLM, AppWorld) can load it.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Event, Receive, Send], Awaitable[None]]

ACCESS_VARIABLE: Final = "AGENTGYM_WEB_ACCESS"
"""Environment variable with the :class:`Access` of a server that another program starts, as JSON."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The clients that a server accepts.

    Attributes:
        host: the address that the server listens on. On loopback, ``Host`` must be a loopback address or ``localhost``.
            On other addresses, IP addresses and names without a dot are accepted, too, since nobody can register them.
        names: further names of this server, as ``Host`` has them.
        token: the token that requests need; empty for none.
        open_paths: paths that need no token.
        cookie: name of the cookie that keeps a token given as ``?token=``; empty for servers without pages.
        needs_json: True: a request with a body must have the content type JSON.
    """

    host: str = "127.0.0.1"
    names: tuple[str, ...] = ()
    token: str = field(default="", repr=False)
    open_paths: tuple[str, ...] = ("/health",)
    cookie: str = ""
    needs_json: bool = True


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request that is refused: an HTTP status, the type of the error and its message."""

    status: int
    kind: str
    message: str


class WebGuard:
    """An ASGI app that answers what :func:`refusal_of` refuses, and hands everything else on.

    Args:
        app: the app to guard.
        access: who may use it; by default :data:`ACCESS_VARIABLE` says so.
    """

    def __init__(self, app: App, access: Access | None = None) -> None:
        self._app = app
        self._access = access_from_environment() if access is None else access

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = refusal_of(scope, self._access)
        if refusal is not None:
            await _refuse(scope, receive, send, refusal)
        elif self._access.cookie and "token=" in scope.get("query_string", b"").decode("latin-1"):
            await self._app(scope, receive, _with_cookie(send, self._access))
        else:
            await self._app(scope, receive, send)


def refusal_of(scope: Event, access: Access) -> Refusal | None:
    """Return why a request is refused, or None if it may be answered.

    Args:
        scope: ASGI scope of an HTTP request or a WebSocket.
        access: who may use the server.
    """
    headers = _headers(scope)
    return (
        _host_refusal(headers, access)
        or _origin_refusal(scope, headers)
        or (_content_refusal(scope, headers) if access.needs_json else None)
        or _token_refusal(scope, headers, access)
    )


def access_from_environment() -> Access:
    """Return the :class:`Access` that :data:`ACCESS_VARIABLE` holds.

    Raises:
        KeyError: the variable is not set, so that no server starts without its guard by mistake.
    """
    given: dict[str, Any] = json.loads(os.environ[ACCESS_VARIABLE])
    for name in ("names", "open_paths"):
        given[name] = tuple(given[name])
    return Access(**given)


def is_loopback(host: str) -> bool:
    """Return True if an address or a name can be reached from this machine alone.

    Example:
        >>> [is_loopback(host) for host in ("localhost", "127.0.0.2", "[::1]", "0.0.0.0", "evil.example")]
        [True, True, True, False, False]
    """
    host = host.strip("[]").rstrip(".").lower()
    address = _as_ip(host)
    return host == "localhost" if address is None else address.is_loopback


def is_own_host(host: str, access: Access) -> bool:
    """Return True if a ``Host`` header may mean this server.

    Example:
        >>> [is_own_host(host, Access()) for host in ("localhost:8765", "127.0.0.1", "[::1]:80", "evil.example")]
        [True, True, True, False]
        >>> [is_own_host(host, Access(host="0.0.0.0")) for host in ("10.0.0.3:80", "search:8001", "evil.example")]
        [True, True, False]
    """
    name = _split_host(host)[0]
    if not name:
        return False
    if name in {_split_host(own)[0] for own in access.names} or is_loopback(name):
        return True
    if is_loopback(access.host):
        return False
    is_local_name = "." not in name or name == socket.gethostname().lower()
    return _as_ip(name) is not None or is_local_name or name == access.host.lower()


# ------------------------------------------------------------------------------------------------------------ checks


def _host_refusal(headers: MutableMapping[str, list[str]], access: Access) -> Refusal | None:
    hosts = headers.get("host", [])
    if len(hosts) == 1 and is_own_host(hosts[0], access):
        return None
    told = hosts[0][:80] if len(hosts) == 1 else f"{len(hosts)} Host headers"
    return Refusal(
        403,
        "ForbiddenError",
        f"this server does not know the host {told!r}; use localhost or its address, or start it with --allow-host",
    )


def _origin_refusal(scope: Event, headers: MutableMapping[str, list[str]]) -> Refusal | None:
    origins = headers.get("origin", [])
    foreign = Refusal(403, "ForbiddenError", "pages of other sites may not use this server")
    if origins and (len(origins) > 1 or not _is_same_origin(origins[0], headers["host"][0])):
        return foreign
    # Requests for images and scripts have no Origin; browsers say where they come from all the same.
    if headers.get("sec-fetch-site", [""])[0] not in ("cross-site", "same-site"):
        return None
    is_link = (
        scope["type"] == "http"
        and scope["method"] in ("GET", "HEAD")
        and headers.get("sec-fetch-mode") == ["navigate"]
        and headers.get("sec-fetch-dest") == ["document"]
    )
    return None if is_link else foreign


def _content_refusal(scope: Event, headers: MutableMapping[str, list[str]]) -> Refusal | None:
    if scope["type"] != "http" or scope["method"] in _WITHOUT_BODY:
        return None
    has_body = headers.get("content-length", ["0"])[0].strip() != "0" or "transfer-encoding" in headers
    kind = headers.get("content-type", [""])[0].partition(";")[0].strip().lower()
    if not has_body or kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return None
    return Refusal(415, "UsageError", "expected JSON, sent with the header Content-Type: application/json")


def _token_refusal(scope: Event, headers: MutableMapping[str, list[str]], access: Access) -> Refusal | None:
    if not access.token or scope["path"] in access.open_paths:
        return None
    if any(hmac.compare_digest(given.encode(), access.token.encode()) for given in _tokens(scope, headers, access)):
        return None
    return Refusal(401, "ForbiddenError", "the token is missing or wrong; send Authorization: Bearer TOKEN")


def _tokens(scope: Event, headers: MutableMapping[str, list[str]], access: Access) -> list[str]:
    given = [one.removeprefix("Bearer ").strip() for one in headers.get("authorization", [])]
    given += parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [])
    if access.cookie:
        for line in headers.get("cookie", []):
            try:
                cookies: SimpleCookie = SimpleCookie(line)
            except CookieError:
                continue
            given += [cookies[access.cookie].value] if access.cookie in cookies else []
    return given


# ----------------------------------------------------------------------------------------------------------- headers


def _headers(scope: Event) -> MutableMapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


def _is_same_origin(origin: str, host: str) -> bool:
    """Compare by the scheme of the origin, since a proxy before the server may have turned HTTPS into HTTP."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return False
    default = _DEFAULT_PORTS.get(parts.scheme)
    if default is None or not parts.hostname or parts.path or parts.query or parts.username is not None:
        return False
    name, given = _split_host(host)
    return parts.hostname.rstrip(".") == name and (port or default) == (given or default)


def _split_host(host: str) -> tuple[str, int]:
    """Return the name in lower case and the port, 0 if there is none; an empty name if it is malformed."""
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    try:
        parts = urlsplit(f"//{host}")
        name, port = (parts.hostname or "").rstrip("."), parts.port or 0
    except ValueError:
        return "", 0
    is_whole = not (parts.path or parts.query or parts.fragment or parts.username is not None)
    return (name, port) if is_whole and not host.isspace() else ("", 0)


def _as_ip(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


# ----------------------------------------------------------------------------------------------------------- answers


async def _refuse(scope: Event, receive: Receive, send: Send, refusal: Refusal) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})  # before it is accepted, which gives HTTP 403
        return
    body = json.dumps({"error": {"type": refusal.kind, "message": refusal.message}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"connection", b"close")]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _with_cookie(send: Send, access: Access) -> Send:
    """Return a function that sends, and keeps the token in a cookie that other sites' requests do not carry."""
    cookie = f"{access.cookie}={access.token}; Path=/; HttpOnly; SameSite=Strict".encode()

    async def sending(event: Event) -> None:
        if event["type"] == "http.response.start":
            event["headers"] = [*event.get("headers", []), (b"set-cookie", cookie)]
        await send(event)

    return sending
