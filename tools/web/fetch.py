"""Fetching of web pages within limits of time, size and type, and according to robots.txt.

The agent chooses the URL, so a missing, slow or broken page raises a :class:`~agentgym.errors.ToolError`. If it were an
infrastructure failure, an agent could void a bad episode by opening a dead page.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from urllib.robotparser import RobotFileParser

import httpx

from agentgym.errors import EnvError, ToolError

READABLE_TYPES = ("text/html", "application/xhtml+xml", "text/plain")
_MAX_ROBOTS_BYTES = 512 * 1024
_MAX_HOSTS = 1024
_NO_TYPE = ("", "unknown/unknown", "application/unknown", "*/*")
_SNIFFED_BYTES = 1445
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_HTML_START = re.compile(
    rb"(?:\xef\xbb\xbf)?[\t\n\f\r ]*<(?:!doctype html|!--|\?xml|(?:html|head|script|iframe|h1|div|font|table|a|style"
    rb"|title|b|body|br|p|main|article|section|meta|link)(?=[\s>/]))",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """Limits of one fetch.

    Attributes:
        timeout_s: seconds for everything: name look-up, redirects, robots.txt and body.
        max_bytes: largest page in bytes, after decompression.
        max_redirects: most redirects, each of which is checked like the first URL.
        user_agent: name that is sent to servers and looked up in robots.txt.
        obey_robots: reject pages that robots.txt disallows for this user agent.
        allow_private: allow pages on this machine and its network. Use it only for your own pages.
    """

    timeout_s: float = 20.0
    max_bytes: int = 5_000_000
    max_redirects: int = 5
    user_agent: str = "agentgym"
    obey_robots: bool = True
    allow_private: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A server's response: URL after redirects, content type, and body."""

    url: str
    content_type: str
    charset: str
    body: bytes


@lru_cache(maxsize=1)
def ssl_context() -> ssl.SSLContext:
    """Return the TLS context, which is made once, since that takes longer than many a fetch."""
    return httpx.create_ssl_context()


class Fetcher:
    """A fetcher of pages for any number of coroutines in any event loop."""

    def __init__(self, options: FetchOptions | None = None) -> None:
        self.options = options or FetchOptions()
        self._robots: OrderedDict[str, RobotFileParser] = OrderedDict()

    async def fetch(self, url: str) -> Page:
        """Fetch a page.

        Raises:
            ToolError: types ``bad_url``, ``no_such_host``, ``refused_address``, ``forbidden_by_robots``,
                ``page_not_found``, ``page_unavailable``, ``unreadable_page``, ``page_too_large``.
            EnvError: this machine cannot look up names.
        """
        try:
            async with asyncio.timeout(self.options.timeout_s):
                return await self._follow(url)
        except TimeoutError:
            raise ToolError(
                f"{url[:200]} did not answer within {self.options.timeout_s:g} s", "page_unavailable"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL, zlib.error) as error:
            raise ToolError(f"{url[:200]} cannot be read: {type(error).__name__}", "page_unavailable") from error

    async def _follow(self, asked: str) -> Page:
        url = parsed_url(asked)
        for _ in range(self.options.max_redirects + 1):
            if self.options.obey_robots:
                await self._check_robots(url)
            status, headers, body = await self._get(url, self.options.max_bytes)
            if not _is_redirect(status, headers):
                return _page(str(url), status, headers, body)
            url = parsed_url(str(url.join(headers["location"])))
        raise ToolError(f"{asked[:200]} redirects more than {self.options.max_redirects} times", "page_unavailable")

    async def _get(self, url: httpx.URL, max_bytes: int) -> tuple[int, httpx.Headers, bytes]:
        host, port = url.raw_host.decode(), url.port or PORTS[url.scheme]
        if not self.options.allow_private and port != PORTS[url.scheme]:
            raise ToolError(f"{str(url)[:200]}: only the usual ports can be opened", "refused_address")
        address = await address_of(host, port, allow_private=self.options.allow_private)
        headers = {
            "Host": url.netloc.decode(),
            "User-Agent": self.options.user_agent,
            "Accept": ", ".join(READABLE_TYPES),
            "Accept-Encoding": "gzip",
        }
        # A new client per request, so that a connection to this address is used for this host only.
        async with httpx.AsyncClient(timeout=self.options.timeout_s, trust_env=False, verify=ssl_context()) as client:
            pinned = url.copy_with(host=address, port=port, fragment=None)
            request = client.build_request("GET", pinned, headers=headers, extensions={"sni_hostname": host})
            response = await client.send(request, stream=True)
            try:
                return response.status_code, response.headers, await _body(response, max_bytes)
            finally:
                await response.aclose()

    async def _check_robots(self, url: httpx.URL) -> None:
        site = f"{url.scheme}://{url.netloc.decode()}"
        rules = self._robots.get(site)
        if rules is None:
            rules = self._robots[site] = await self._robots_of(site)
            if len(self._robots) > _MAX_HOSTS:
                self._robots.popitem(last=False)
        if not rules.can_fetch(self.options.user_agent, str(url)):
            raise ToolError(f"{site} forbids programs to read {url.path[:200]} (robots.txt)", "forbidden_by_robots")

    async def _robots_of(self, site: str) -> RobotFileParser:
        """Return a site's rules according to RFC 9309: all allowed without a file, none if the server fails."""
        url = parsed_url(f"{site}/robots.txt")
        status, body = 503, b""
        for _ in range(self.options.max_redirects + 1):
            status, headers, body = await self._get(url, _MAX_ROBOTS_BYTES)
            if not _is_redirect(status, headers):
                break
            url = parsed_url(str(url.join(headers["location"])))
        rules = RobotFileParser()
        if status >= 500:
            rules.parse(["User-agent: *", "Disallow: /"])
        else:
            rules.parse(body.decode(errors="replace").splitlines() if status == 200 else [])
        return rules


def _is_redirect(status: int, headers: httpx.Headers) -> bool:
    return status in (301, 302, 303, 307, 308) and "location" in headers


async def _body(response: httpx.Response, max_bytes: int) -> bytes:
    raw = bytearray()
    async for chunk in response.aiter_raw():
        raw += chunk
        if len(raw) > max_bytes:
            raise _too_large(max_bytes)
    encoding = response.headers.get("content-encoding", "identity").lower()
    if encoding == "identity":
        return bytes(raw)
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ToolError(f"the page is packed as {encoding!r}, which was not asked for", "unreadable_page")
    unpacked = zlib.decompressobj(wbits=47).decompress(bytes(raw), max_bytes + 1)
    if len(unpacked) > max_bytes:
        raise _too_large(max_bytes)
    return unpacked


def _too_large(max_bytes: int) -> ToolError:
    return ToolError(f"the page is larger than {max_bytes} bytes", "page_too_large")


def _page(url: str, status: int, headers: httpx.Headers, body: bytes) -> Page:
    if status in (404, 410):
        raise ToolError(f"there is no page at {url[:200]} (status {status})", "page_not_found")
    if status != 200:
        raise ToolError(f"{url[:200]} cannot be read (status {status})", "page_unavailable")
    content_type, _, parameters = headers.get("content-type", "").lower().partition(";")
    content_type = content_type.strip()
    if content_type in _NO_TYPE:
        content_type = _sniffed_type(body)
    if content_type not in READABLE_TYPES:
        raise ToolError(
            f"{url[:200]} is {content_type[:80]!r}; what can be read is {', '.join(READABLE_TYPES)}",
            "unreadable_page",
        )
    charset = parameters.partition("charset=")[2].strip(" \"'") if "charset=" in parameters else ""
    return Page(url, content_type, charset, body)


def _sniffed_type(body: bytes) -> str:
    """Return the type of a body whose server names none, as in https://mimesniff.spec.whatwg.org.

    Example:
        >>> _sniffed_type(b" <!DOCTYPE html>"), _sniffed_type(b"Plain."), _sniffed_type(b"\\x89PNG\\0")
        ('text/html', 'text/plain', 'application/octet-stream')
    """
    start = body[:_SNIFFED_BYTES]
    if _HTML_START.match(start):
        return "text/html"
    is_text = start.startswith(_BOMS) or not _BINARY.search(start)
    return "text/plain" if is_text else "application/octet-stream"


# ----------------------------------------- addresses that an agent may fetch from: none in the local network A page's
# URL comes from the model or from a page it read. Names are therefore resolved here, every address is checked, and the
# connection goes to the address that was checked, so that a second look-up cannot lead elsewhere.

PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def parsed_url(url: str) -> httpx.URL:
    """Parse a URL and convert its host to ASCII.

    Raises:
        ToolError: of type ``bad_url``, if it is not an http(s) URL with a host, or contains a user name.

    Example:
        >>> parsed_url(" https://b\u00fccher.example/a ").raw_host
        b'xn--bcher-kva.example'
    """
    try:
        parsed = httpx.URL(url.strip().encode(errors="replace").decode())
    except httpx.InvalidURL as error:
        raise ToolError(f"{url[:200]!r} is no URL: {error}", "bad_url") from None
    if parsed.scheme not in PORTS or not parsed.host:
        raise ToolError(f"{url[:200]!r} is no URL of a web page; give one that begins with https://", "bad_url")
    if parsed.userinfo:
        raise ToolError(f"{url[:200]!r}: URLs with user names cannot be opened", "bad_url")
    return parsed


def is_public(address: str) -> bool:
    """Return True for an address that is reachable from the public internet.

    IPv6 addresses of tunnels that contain an IPv4 address count as not public, since their target depends on the
    network.

    Example:
        >>> [is_public(a) for a in ("93.184.215.14", "127.0.0.1", "169.254.169.254", "10.0.0.1", "::ffff:127.0.0.1")]
        [True, False, False, False, False]
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if not parsed.is_global or parsed.is_multicast or parsed.is_reserved or parsed.is_unspecified:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        return not (parsed.ipv4_mapped or parsed.sixtofour or parsed.teredo or parsed in _NAT64)
    return True


async def address_of(host: str, port: int, *, allow_private: bool = False) -> str:
    """Return the address to connect to.

    Raises:
        ToolError: of type ``refused_address`` if an address of the host is not public, ``no_such_host`` if it has none.
        EnvError: this machine cannot look up names at present.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise EnvError(f"names of hosts cannot be looked up now ({error.strerror}); is there a network?") from error
        raise ToolError(f"there is no host {host[:200]!r}", "no_such_host") from None
    except (UnicodeError, OSError) as error:
        raise ToolError(f"{host[:200]!r} is no name of a host: {error}", "no_such_host") from None
    addresses = [str(entry[4][0]) for entry in found]
    if not allow_private and not all(is_public(address) for address in addresses):
        raise ToolError(f"{host[:200]!r} is not on the public internet; it cannot be opened", "refused_address")
    return addresses[0]
