"""The live web as a retriever: an engine finds pages, a fetcher reads them, a cassette remembers both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, TypeVar

from agentgym.env.worker_thread import run_coroutine
from agentgym.errors import ToolError
from agentgym.tools.retrieval.types import AsyncRetriever, Document, Hit
from agentgym.tools.web.cassette import LINKED_PAGE, PAGE, Cassette
from agentgym.tools.web.engines import SearchEngine
from agentgym.tools.web.fetch import Fetcher
from agentgym.tools.web.readable import readable_document

Answer = TypeVar("Answer")
READING_TIMEOUT_S = 20.0
"""For finding a page's text. Its thread then goes on to an end that the limit on tags keeps near."""


class WebRetriever(AsyncRetriever):
    """Pages of the web; their ids are their URLs.

    Args:
        engine: finds them.
        fetcher: reads them, within its limits.
        cassette: records and replays both; without one every answer is the web's of this moment.
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
        """Return a page.

        Args:
            with_links: see :func:`~agentgym.tools.web.readable.readable_document`.
        """

        async def ask() -> dict[str, Any]:
            page = await self._fetcher.fetch(doc_id)
            try:
                read = asyncio.to_thread(readable_document, page, doc_id, with_links=with_links)
                return asdict(await asyncio.wait_for(read, READING_TIMEOUT_S))
            except TimeoutError:  # the agent's doing, which chose the page: not a time-out of the environment
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
        """Nothing is held between calls."""

    async def _answer(self, engine: str, query: str, k: int, ask: Callable[[], Awaitable[Any]]) -> Any:
        if self._cassette is None:
            return await ask()
        return await self._cassette.answer(engine, query, k, ask)
