"""Types of all retrievers: documents, ranked hits, and the protocol to search and to open documents.

Synchronous and asynchronous callers share the protocol :class:`Retriever`. A retriever that waits for a network also
has the coroutines of :class:`AsyncRetriever`. :func:`asearch` and :func:`adocument` await them if they exist. Otherwise
they call the retriever directly, since a local index answers in about a millisecond.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from agentgym.errors import ToolError


@dataclass(frozen=True, slots=True)
class Document:
    """A document of a corpus: a passage, an article or a web page.

    Attributes:
        id: unique id in the corpus, by which the document is opened.
        title: title of one line; may be empty.
        text: the whole text without markup.
        url: source of the document; empty if there is none.

    Example:
        >>> Document("7", "Lilu", "A demon of the night.").url
        ''
    """

    id: str
    title: str
    text: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A ranked result.

    Attributes:
        doc_id: id for :meth:`Retriever.document`.
        title: title of the document.
        snippet: the part of the text that fits the query, cut to about 320 characters, with an ellipsis at each cut.
        score: higher is better; comparable only within one answer.

    Example:
        >>> Hit("7", "Lilu", "A demon of the night.", 3.2).doc_id
        '7'
    """

    doc_id: str
    title: str
    snippet: str
    score: float


class Retriever(Protocol):
    """A searchable collection of documents.

    A mistake of the policy (unknown document, query without a word) raises :class:`~agentgym.errors.ToolError`. A
    failure of the index raises :class:`~agentgym.errors.InfrastructureError`, which is never a reward.

    Example:
        >>> class One:
        ...     kept = Document("7", "Lilu", "A demon of the night.")
        ...     def search(self, query: str, k: int) -> tuple[Hit, ...]:
        ...         return (Hit("7", self.kept.title, self.kept.text, 1.0),)[:k]
        ...     def document(self, doc_id: str) -> Document:
        ...         if doc_id != "7":
        ...             raise no_document(doc_id, ["7"])
        ...         return self.kept
        ...     def __len__(self) -> int:
        ...         return 1
        ...     def close(self) -> None: ...
        >>> retriever: Retriever = One()
        >>> retriever.search("demon", k=3)[0].title
        'Lilu'
    """

    def search(self, query: str, k: int) -> tuple[Hit, ...]:
        """Return the best ``k`` documents, best first; fewer, or none, if fewer match.

        Raises:
            ToolError: of type ``invalid_query``, if the query contains no search term.
            InfrastructureError: the index or its server failed.
        """
        ...

    def document(self, doc_id: str) -> Document:
        """Return the document with an id.

        Raises:
            ToolError: of type ``unknown_document``; the message names similar ids.
            InfrastructureError: the index or its server failed.
        """
        ...

    def __len__(self) -> int:
        """Return the number of documents; 0 if it is unknown, as on the web."""
        ...

    def close(self) -> None:
        """Free all resources; a second call does nothing."""
        ...


@runtime_checkable
class AsyncRetriever(Retriever, Protocol):
    """A retriever with coroutines, for sources behind a network."""

    async def asearch(self, query: str, k: int) -> tuple[Hit, ...]:
        """Return the best documents, as :meth:`Retriever.search` does."""
        ...

    async def adocument(self, doc_id: str) -> Document:
        """Return a document, as :meth:`Retriever.document` does."""
        ...


async def asearch(retriever: Retriever, query: str, k: int) -> tuple[Hit, ...]:
    """Search any retriever from a coroutine.

    Example:
        >>> class Empty:
        ...     def search(self, query, k):
        ...         return ()
        >>> asyncio.run(asearch(Empty(), "demon", 3))
        ()
    """
    if isinstance(retriever, AsyncRetriever):
        return await retriever.asearch(query, k)
    return retriever.search(query, k)


async def adocument(retriever: Retriever, doc_id: str) -> Document:
    """Open a document of any retriever from a coroutine."""
    if isinstance(retriever, AsyncRetriever):
        return await retriever.adocument(doc_id)
    return retriever.document(doc_id)


def no_document(doc_id: str, nearby: Iterable[str]) -> ToolError:
    """Return the error for an unknown id.

    Args:
        nearby: some existing ids; the message names the five most similar ones.

    Example:
        >>> print(no_document("doc-12", ["doc-21", "doc-2", "zebra"]))
        no document 'doc-12'; there are for example 'doc-2', 'doc-21', 'zebra'; open takes an id that search returned
    """
    names = list(nearby)
    near = difflib.get_close_matches(doc_id[:200], names, n=5, cutoff=0.0)
    shown = ", ".join(repr(name) for name in near)
    examples = f"; there are for example {shown}" if shown else ""
    return ToolError(
        f"no document {doc_id[:200]!r}{examples}; open takes an id that search returned", "unknown_document"
    )
