"""Sites behind an episode's host names: a folder, Python code, or a server.

A browser context reaches nothing else (:mod:`agentgym.envs.gui.network`), and its pages have URLs without ports, the
same in every run: ``http://shop.localhost/basket``. Use names that end in ``.localhost``: to a browser they are secure,
as ``https`` is, and so have every web API.
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

from agentgym.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A page's request."""

    method: str
    url: str
    """With host and query, as in ``http://shop.localhost/search?q=mug``."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    body: bytes = b""

    @property
    def path(self) -> str:
        """The path, decoded, without the query."""
        return urllib.parse.unquote(urllib.parse.urlsplit(self.url).path) or "/"

    @property
    def query(self) -> dict[str, str]:
        """The query's parameters; of several with one name the last."""
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
    """Answers the requests for one host name."""

    @abstractmethod
    async def answer(self, request: Request) -> Response:
        """Answer a request; an exception is an error of the environment, not of the agent.

        It runs where browsers are driven, so it must not block: ``asyncio.to_thread`` for what does.
        """
        ...


class Folder:
    """A folder of files; a folder in it is its ``index.html``.

    Files are read once and kept: they are small and asked for in every episode.

    Raises:
        UsageError: there is no such folder.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise UsageError(f"no folder {str(path)!r} to serve")
        self._root = path.resolve()
        self._kept: dict[str, Response] = {}

    async def answer(self, request: Request) -> Response:
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
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        charset = "; charset=utf-8" if kind.startswith("text/") or kind.endswith(("javascript", "json")) else ""
        return Response(body=file.read_bytes(), content_type=kind + charset)


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server that runs elsewhere, such as a real web application on a port of this machine."""

    host: str
    port: int


Sites = Mapping[str, Site | Upstream]
"""Host names, with ``:port`` where it is not 80, and what stands behind them."""
