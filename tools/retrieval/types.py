"""Types of all retrievers: documents, ranked hits, and two questions (what fits, and what says this one).

Sync and async callers share the one protocol :class:`Retriever`. A retriever that waits for a network offers the
coroutines of :class:`AsyncRetriever` as well; :func:`asearch` and :func:`adocument` await those where they exist and
else answer inline: a local index answers in about a millisecond, which needs no thread.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from agentgym.errors import ToolError


@dataclass(frozen=True, slots=True)
class Document:
    """One text of a corpus: a passage, an article or a web page.

    Attributes:
        id: its name within the corpus, by which it is opened.
        title: one line; may be empty.
        text: all of it, without markup.
        url: where it comes from, empty if from nowhere in particular.

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
        doc_id: what :meth:`Retriever.document` takes.
        title: the document's.
        snippet: the part of its text that fits the query, cut to some 320 characters with each cut marked by an
            ellipsis.
        score: higher is better; comparable within one answer alone.

    Example:
        >>> Hit("7", "Lilu", "A demon of the night.", 3.2).doc_id
        '7'
    """

    doc_id: str
    title: str
    snippet: str
    score: float


class Retriever(Protocol):
    """Ranks documents for a query and hands them out.

    What the policy did wrong is a :class:`~agentgym.errors.ToolError` (unknown document, a query without any word);
    what failed by itself is an :class:`~agentgym.errors.InfrastructureError`, which is never a reward.

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
        """The best ``k`` documents, best first; fewer, or none, if fewer fit.

        Raises:
            ToolError: type ``invalid_query``, if there is nothing to look for in the query.
            InfrastructureError: the index or its server failed.
        """
        ...

    def document(self, doc_id: str) -> Document:
        """The document of that id.

        Raises:
            ToolError: type ``unknown_document``, naming ids that exist near it.
            InfrastructureError: the index or its server failed.
        """
        ...

    def __len__(self) -> int:
        """Number of documents; 0 if that cannot be known, as on the web."""
        ...

    def close(self) -> None:
        """Free what it holds; a second call does nothing."""
        ...


@runtime_checkable
class AsyncRetriever(Retriever, Protocol):
    """A retriever that waits for something: the same answers as coroutines."""

    async def asearch(self, query: str, k: int) -> tuple[Hit, ...]:
        """:meth:`Retriever.search` as a coroutine."""
        ...

    async def adocument(self, doc_id: str) -> Document:
        """:meth:`Retriever.document` as a coroutine."""
        ...


async def asearch(retriever: Retriever, query: str, k: int) -> tuple[Hit, ...]:
    """Search from a coroutine, whichever retriever it is.

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
    """Get a document from a coroutine, whichever retriever it is."""
    if isinstance(retriever, AsyncRetriever):
        return await retriever.adocument(doc_id)
    return retriever.document(doc_id)


def no_document(doc_id: str, nearby: Iterable[str]) -> ToolError:
    """The error for an id that does not exist.

    Args:
        nearby: some ids that do exist; the five most similar are named.

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
