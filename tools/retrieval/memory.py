"""A retriever in memory, for generated corpora that are small enough to be indexed in a moment."""

from __future__ import annotations

from collections.abc import Iterable

from agentgym.tools.retrieval.bm25 import SearchIndex
from agentgym.tools.retrieval.types import Document, Hit, no_document
from agentgym.tools.retrieval.words import SNIPPET_CHARS, query_words, snippet_of

_NUM_NAMED = 200
"""Most ids that an unknown id is compared with for suggestions."""


class MemoryRetriever:
    """BM25 over documents in memory, with the same ranking on every machine. Words in the title count twice.

    Args:
        documents: documents with distinct ids.
        snippet_chars: longest snippet in characters.

    Example:
        >>> demons = [Document("7", "Lilu", "A demon of the night."), Document("8", "Gallu", "A demon.")]
        >>> retriever = MemoryRetriever(demons)
        >>> [hit.doc_id for hit in retriever.search("Who is Lilu?", k=5)]
        ['7']
    """

    def __init__(self, documents: Iterable[Document], snippet_chars: int = SNIPPET_CHARS) -> None:
        self._documents = tuple(documents)
        self._place_of = {document.id: place for place, document in enumerate(self._documents)}
        self._snippet_chars = snippet_chars
        self._index = SearchIndex(f"{document.title} {document.title} {document.text}" for document in self._documents)

    def search(self, query: str, k: int) -> tuple[Hit, ...]:
        """Return the best documents; see :meth:`~agentgym.tools.retrieval.types.Retriever.search`. At most 50."""
        words = query_words(query)
        found = self._index.search(query)[: max(0, k)]
        return tuple(self._hit(self._documents[place], words, -rank) for rank, place in enumerate(found))

    def document(self, doc_id: str) -> Document:
        """Return a document; see :meth:`~agentgym.tools.retrieval.types.Retriever.document`."""
        if doc_id not in self._place_of:
            raise no_document(doc_id, list(self._place_of)[:_NUM_NAMED])
        return self._documents[self._place_of[doc_id]]

    def __len__(self) -> int:
        return len(self._documents)

    def close(self) -> None:
        """Do nothing, since only memory is used."""

    def _hit(self, document: Document, words: Iterable[str], score: float) -> Hit:
        return Hit(document.id, document.title, snippet_of(document.text, words, self._snippet_chars), score)
