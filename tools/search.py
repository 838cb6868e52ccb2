"""The tools ``search`` (ranked snippets), ``open`` (a document page by page) and ``find`` (text in a page).

Each answer respects a token budget and marks its cuts. Environments have no tokenizer, so tokens are estimated unless a
counter is given. Pages depend only on the document and the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentgym.errors import ToolError
from agentgym.tool import tool
from agentgym.tools.reading import Budget, cut_to_tokens, pages_of, places_of
from agentgym.tools.retrieval.types import Document, Hit, Retriever, adocument, asearch

MAX_RESULTS = 20
"""Most results of one search."""
MAX_FIND_CHARS = 200
MAX_PLACES = 5
"""Most matches that one ``find`` shows."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of the tools, for snapshots and state keys.

    Attributes:
        found: sorted ids of all documents that searches returned. Two agents that found the same documents are in the
            same state, whatever their queries.
        doc_id: id of the open document; empty if none is open.
        page: number of the open page, from 1.

    Example:
        >>> Reading().after_search(["b", "a"]).after_search(["a"]).found
        ('a', 'b')
    """

    found: tuple[str, ...] = ()
    doc_id: str = ""
    page: int = 0

    def after_search(self, doc_ids: Sequence[str]) -> Reading:
        """Return the state after a search that returned these documents."""
        return replace(self, found=tuple(sorted({*self.found, *doc_ids})))


class SearchTools:
    """Mixin of the three tools for a :class:`~agentgym.env.tool_env.ToolEnv`.

    Attributes:
        retriever: retriever that the environment sets. A local one is called directly, one behind a network is awaited.
        budget: token limits of answers.
        reading: state of the agent. The environment sets it to ``Reading()`` at the start of an episode and includes it
            in snapshots.
    """

    retriever: Retriever
    budget: Budget = Budget()
    reading: Reading = Reading()
    search_only: bool = False
    """True if the agent cannot open documents, so that results show no ids."""
    _opened: Document | None = None  # cached document for the next page; always that of reading.doc_id

    @tool
    async def search(self, query: str, k: int = 5) -> str:
        """Search the documents; returns titles, ids and fitting parts of the best ones.

        Args:
            query: a few words that the document should hold.
            k: how many results, 1 to 20.
        """
        if not 1 <= k <= MAX_RESULTS:
            raise ToolError(f"k is 1 to {MAX_RESULTS}, got {k}", "invalid_arguments")
        hits = await asearch(self.retriever, query, k)
        self.reading = self.reading.after_search([hit.doc_id for hit in hits])
        return results_text(hits, self.budget, show_ids=not self.search_only)

    @tool
    async def open(self, doc_id: str, page: int = 1) -> str:
        """Open a document, one page of it at a time.

        Args:
            doc_id: its id, as search shows it.
            page: which page, from 1.
        """
        document = await self._document(doc_id)
        pages = pages_of(document.text, self.budget)
        if not 1 <= page <= len(pages):
            raise ToolError(f"{document.id} has pages 1 to {len(pages)}, got {page}", "no_such_page")
        self._opened = document
        self.reading = replace(self.reading, doc_id=document.id, page=page)
        return page_text(document, page, pages)

    @tool
    async def find(self, text: str) -> str:
        """Find a text in the open page; upper and lower case are the same.

        Args:
            text: a word or phrase.
        """
        if not self.reading.doc_id:
            raise ToolError("no document is open; call open first", "nothing_open")
        if not text.strip() or len(text) > MAX_FIND_CHARS:
            raise ToolError(f"text is a word or phrase of 1 to {MAX_FIND_CHARS} characters", "invalid_arguments")
        document = await self._document(self.reading.doc_id)
        pages = pages_of(document.text, self.budget)
        places = places_of(text, pages[self.reading.page - 1])
        if places:
            shown = [f"{number}. {place}" for number, place in enumerate(places[:MAX_PLACES], 1)]
            more = [f"[{len(places) - MAX_PLACES} more places]"] if len(places) > MAX_PLACES else []
            whole = f"{len(places)} found on page {self.reading.page}:\n" + "\n".join(shown + more)
            return cut_to_tokens(whole, self.budget.result_tokens, self.budget)
        others = [str(number) for number, page in enumerate(pages, 1) if places_of(text, page)]
        where = f"; it is on page {', '.join(others[:10])}" if others else ""
        return f"Not on page {self.reading.page} of {len(pages)}{where}."

    async def _document(self, doc_id: str) -> Document:
        if self._opened is not None and self._opened.id == doc_id:
            return self._opened
        return await adocument(self.retriever, doc_id)


def results_text(hits: Sequence[Hit], budget: Budget, show_ids: bool = True) -> str:
    """Format ranked results as text, each with an equal share of the budget.

    Example:
        >>> print(results_text([Hit("lilu", "Lilu (mythology)", "A demon of the night.", 3.2)], Budget()))
        1. Lilu (mythology) [id: lilu]
        A demon of the night.
    """
    if not hits:
        return "No document fits; try other words."
    share = budget.result_tokens // len(hits)
    shown = []
    for rank, hit in enumerate(hits, 1):
        head = f"{rank}. {cut_to_tokens(hit.title or 'Untitled', max(share // 2, 1), budget)}"
        head += f" [id: {hit.doc_id}]" if show_ids else ""
        snippet = cut_to_tokens(hit.snippet, share - budget.count_tokens(head), budget)
        shown.append(f"{head}\n{snippet}".rstrip())
    return "\n\n".join(shown)


def page_text(document: Document, page: int, pages: Sequence[str]) -> str:
    """Format a page as text under the document's title.

    Example:
        >>> print(page_text(Document("ur", "Ur", "A city."), 1, ["A city."]))
        Ur [page 1 of 1]
        A city.
    """
    head = f"{document.title or 'Untitled'} [page {page} of {len(pages)}]" + (f" {document.url}" * bool(document.url))
    return f"{head}\n{pages[page - 1] or '[no text]'}"
