"""Proxies of the environment's variables: none to this machine, and named in the errors of other connections.

A proxy elsewhere cannot reach servers on this machine, and one on this machine would read their tokens. Clients of
agentgym therefore connect to loopback addresses directly, whatever ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` are.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_SCHEMES: Final = {
    "ws": ("ws", "socks", "https", "http"),  # the order of the package websockets
    "wss": ("wss", "socks", "https"),
    "http": ("http", "all"),
    "https": ("https", "all"),
}


def is_loopback(url: str) -> bool:
    """Return True if the host of a URL is this machine.

    Example:
        >>> is_loopback("http://localhost:80/x"), is_loopback("ws://[::1]:8765"), is_loopback("http://127.9.9.9")
        (True, True, True)
        >>> is_loopback("http://example.com"), is_loopback("http://[broken")
        (False, False)
    """
    try:
        host = (urlsplit(url).hostname or "").rstrip(".").lower()
    except ValueError:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def proxy_of(url: str) -> str:
    """Return the proxy to which a client sends a URL's requests, without its user and password; empty for none."""
    try:
        parts = urlsplit(url)
        if is_loopback(url) or proxy_bypass(parts.netloc.rpartition("@")[2]):
            return ""
    except ValueError:
        return ""
    proxies = getproxies()
    found = next((proxies[name] for name in _SCHEMES.get(parts.scheme, ()) if proxies.get(name)), "")
    start, has_scheme, rest = found.rpartition("://")
    return f"{start}{has_scheme}{rest.rpartition('@')[2]}".rstrip("/")


def by_proxy(url: str) -> str:
    """Return a remark for an error about a connection: the proxy that was used, or an empty text."""
    proxy = proxy_of(url)
    return f" (by the proxy {proxy} of the environment's variables; NO_PROXY lists hosts without it)" if proxy else ""


@contextmanager
def direct_loopback(url: str) -> Iterator[None]:
    """Let libraries that read the variables themselves connect to a loopback address directly, inside the block."""
    if not is_loopback(url):
        yield
        return
    names = [name for name in os.environ if name.lower().endswith("_proxy")]
    kept = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(kept)
