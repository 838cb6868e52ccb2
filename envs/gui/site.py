"""Sites behind an episode's host names: a folder, Python code, or a server.

A browser context reaches nothing else (:mod:`agentgym.envs.gui.network`). Its pages have URLs without ports, which are
the same in every run: ``http://shop.localhost/basket``. Use names that end in ``.localhost``: browsers treat them as
secure, like ``https``, and so offer them every web API.
"""

from __future__ import annotations

import asyncio
import mimetypes
import urllib.parse
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agentgym.errors import MissingDataError
from agentgym.tools.web.charsets import declared_charset


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An HTTP request of a page."""

    method: str
    url: str
    """Address with host and query, as in ``http://shop.localhost/search?q=mug``."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header values by name, in lower case."""
    body: bytes = b""

    @property
    def path(self) -> str:
        """The path, decoded, without the query."""
        return urllib.parse.unquote(urllib.parse.urlsplit(self.url).path) or "/"

    @property
    def query(self) -> dict[str, str]:
        """The query's parameters; if a name occurs twice, the last value."""
        return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.url).query, keep_blank_values=True))

    @property
    def form(self) -> dict[str, str]:
        """The fields of a posted form (``application/x-www-form-urlencoded``)."""
        return dict(urllib.parse.parse_qsl(self.body.decode(errors="replace"), keep_blank_values=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A site's answer."""

    status: int = 200
    body: bytes = b""
    content_type: str = "text/html; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


class Site(Protocol):
    """The protocol of a site, which answers the requests for one host name."""

    @abstractmethod
    async def answer(self, request: Request) -> Response:
        """Answer a request. An exception is a page with status 500 for the agent.

        The episode is void if the request that the site had first answered fails as well, or for lack of disk, memory
        or files.

        It runs in the driver's loop, so it must not block; use ``asyncio.to_thread`` for blocking work.
        """
        ...


class Folder:
    """A site that serves a folder's files; for a folder inside it serves ``index.html``.

    Files are read once and kept in memory, since they are small and every episode requests them. Text that is UTF-8 is
    sent as such, unless the document declares a charset. The browser detects all other charsets.

    Raises:
        UsageError: there is no such folder.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise MissingDataError(f"no folder {str(path)!r} to serve")
        self._root = path.resolve()
        self._kept: dict[str, Response] = {}

    async def answer(self, request: Request) -> Response:
        """Return the file at the request's path, or an answer with status 404."""
        if request.path not in self._kept:
            self._kept[request.path] = await asyncio.to_thread(self._read, request.path)
        return self._kept[request.path]

    def _read(self, path: str) -> Response:
        try:
            file = (self._root / path.lstrip("/")).resolve()
            file = file / "index.html" if file.is_dir() else file
            is_there = file.is_relative_to(self._root) and file.is_file()
        except (OSError, ValueError):  # a name too long, or with characters that no name has
            is_there = False
        if not is_there:
            return Response(status=404, body=b"<h1>Not found</h1>")
        kind, body = mimetypes.guess_type(file.name)[0] or "application/octet-stream", file.read_bytes()
        is_text = kind.startswith("text/") or kind.endswith(("javascript", "json", "xml"))
        charset = "; charset=utf-8" if is_text and not declared_charset(body) and _is_utf8(body) else ""
        return Response(body=body, content_type=kind + charset)


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server that runs elsewhere, such as a real web application on a port of this machine."""

    host: str
    port: int


Sites = Mapping[str, Site | Upstream]
"""Site or server by host name; the name includes ``:port`` unless it is 80."""
