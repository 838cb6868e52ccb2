"""Which addresses an agent's fetches may reach: none of the network it runs in.

A page's URL comes from the model or from a page it read. Names are therefore resolved here, every address is checked,
and the connection goes to the address that was checked, so that a second look-up cannot lead elsewhere.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

import httpx

from agentgym.errors import EnvError, ToolError

PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def parsed_url(url: str) -> httpx.URL:
    """A URL, its host in ASCII.

    Raises:
        ToolError: type ``bad_url``, if it is no http(s) URL with a host, or holds a user name.

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
    """True for an address anyone on the internet may reach.

    Tunnels that carry an IPv4 address within IPv6 count as not public: where they lead depends on the network.

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
    """The address to connect to.

    Raises:
        ToolError: type ``refused_address`` if any address of the host is not public, ``no_such_host`` if it has none.
        EnvError: names cannot be looked up now.
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
