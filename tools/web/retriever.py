"""The live web as a retriever: an engine finds pages, a fetcher reads them, and a cassette records both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from itertools import islice
from re import finditer
from typing import Any, Final, TypeVar
from urllib.parse import urljoin, urlsplit

from agentgym.env.worker_thread import run_coroutine
from agentgym.errors import ToolError, require_extra
from agentgym.tools.retrieval.types import AsyncRetriever, Document, Hit
from agentgym.tools.web.cassette import LINKED_PAGE, PAGE, Cassette
from agentgym.tools.web.charsets import decoded
from agentgym.tools.web.engines import SearchEngine
from agentgym.tools.web.fetch import Fetcher, Page

Answer = TypeVar("Answer")
READING_TIMEOUT_S = 20.0
"""Seconds for extracting a page's text. After that its thread continues, for a time that :data:`MAX_TAGS` limits."""


class WebRetriever(AsyncRetriever):
    """A retriever of web pages, whose ids are their URLs.

    Args:
        engine: search engine.
        fetcher: fetches the pages within its limits.
        cassette: records and replays both; without it, every answer comes from the live web.
    """

    def __init__(self, engine: SearchEngine, fetcher: Fetcher | None = None, cassette: Cassette | None = None) -> None:
        self._engine = engine
        self._fetcher = fetcher or Fetcher()
        self._cassette = cassette

    async def asearch(self, query: str, k: int) -> tuple[Hit, ...]:
        async def ask() -> list[dict[str, Any]]:
            return [asdict(hit) for hit in await self._engine.search(query, k)]

        return tuple(Hit(**fields) for fields in await self._answer(self._engine.name, query, k, ask))

    async def adocument(self, doc_id: str, *, with_links: bool = False) -> Document:
        """Return the text of a page.

        Args:
            with_links: see :func:`readable_document`.
        """

        async def ask() -> dict[str, Any]:
            page = await self._fetcher.fetch(doc_id)
            try:
                async with asyncio.timeout(READING_TIMEOUT_S):
                    return asdict(await asyncio.to_thread(readable_document, page, doc_id, with_links=with_links))
            except TimeoutError:  # the agent chose the page, so this is not a time-out of the environment
                raise ToolError(
                    f"{page.url[:200]} takes over {READING_TIMEOUT_S:g} s to read", "unreadable_page"
                ) from None

        return Document(**await self._answer(LINKED_PAGE if with_links else PAGE, doc_id, 0, ask))

    def search(self, query: str, k: int) -> tuple[Hit, ...]:
        return run_coroutine(self.asearch(query, k))

    def document(self, doc_id: str) -> Document:
        return run_coroutine(self.adocument(doc_id))

    def __len__(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing, since nothing is kept between calls."""

    async def _answer(self, engine: str, query: str, k: int, ask: Callable[[], Awaitable[object]]) -> Any:
        if self._cassette is None:
            return await ask()
        return await self._cassette.answer(engine, query, k, ask)


# ---------------------------------------------------- the readable text of a page (extra ``search``)

MAX_TAGS: Final = 30_000
"""Most tags of a page that are parsed, since some pages take milliseconds per tag; the text says where it was cut."""


def readable_document(page: Page, doc_id: str, *, with_links: bool = False) -> Document:
    """Extract the text of a page without navigation, advertisements and markup, using trafilatura.

    Args:
        page: the fetched page.
        doc_id: the requested URL.
        with_links: keep links in Markdown syntax, ``[words](address)`` or ``[words](<address>)``.

    Raises:
        ToolError: of type ``unreadable_page``, if the page contains no text.
        MissingExtraError: trafilatura is not installed.
    """
    if page.content_type == "text/plain":
        return Document(doc_id, page.url, decoded(page.body, page.charset, is_html=False), page.url)
    require_extra("reading web pages", "search", "trafilatura")
    import trafilatura

    html = decoded(page.body, page.charset)
    end = _end_of_tags(html)
    tree = trafilatura.load_html(html[:end])
    found = None
    if tree is not None:
        # trafilatura takes links as relative to the site's root
        base = _base_of(tree, page.url)
        tree.rewrite_links(lambda link: _absolute(link, base), resolve_base_href=False)
        found = trafilatura.bare_extraction(
            tree, url=page.url, with_metadata=True, include_comments=False, include_links=with_links
        )
    if found is None or isinstance(found, dict) or not found.text:
        raise ToolError(f"{page.url[:200]} holds no readable text", "unreadable_page")
    text = found.text
    if end < len(html):
        text += f"\n\n[cut: the page goes on after {end:,} of {len(html):,} characters, its first {MAX_TAGS:,} tags]"
    return Document(doc_id, found.title or page.url, text, page.url)


def _end_of_tags(html: str) -> int:
    """Return the position of the first tag that is not parsed."""
    return next((tag.start() for tag in islice(finditer("<", html), MAX_TAGS, None)), len(html))


def _absolute(link: str, base: str) -> str:
    """Return a link as an address; one within the page, or one that is malformed, stays as it is."""
    try:
        return link if link.startswith("#") else urljoin(base, link)
    except ValueError:
        return link


def _base_of(tree: Any, url: str) -> str:
    """Return the address that a page's links are relative to, and remove its ``<base>``."""
    given = [href for base in tree.iter("base") if (href := base.attrib.pop("href", None)) is not None]
    try:
        found = urljoin(url, given[0].strip()) if given else url
        return found if urlsplit(found).scheme in ("http", "https") else url
    except ValueError:
        return url
