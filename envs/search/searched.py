"""The retriever that an environment's option names, opened once in a process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from agentgym.errors import UsageError, require_known
from agentgym.tools.retrieval.corpus import corpus_of
from agentgym.tools.retrieval.indexes import BACKENDS, IndexOptions, open_retriever
from agentgym.tools.retrieval.memory import MemoryRetriever
from agentgym.tools.retrieval.types import Document, Retriever

NAMES = ("memory", *BACKENDS)
SCHEMES = ("http://", "https://")


def searched(name: str, documents: Sequence[Document], embedder: str | None = None) -> Retriever:
    """A retriever by name or URL, shared by the environments of a process as long as its documents are the same.

    Args:
        name: one of :data:`NAMES`, or the URL of a search server, which has documents of its own.
        documents: what is searched.
        embedder: for ``dense`` and ``hybrid``, a model that sentence-transformers can load.

    Raises:
        UnknownNameError: no such retriever.
        UsageError: it needs an embedder, or the documents are none.
        MissingExtraError: the retriever's package is not installed.
    """
    if name.startswith(SCHEMES):
        return _remote(name)
    require_known("retriever", name, NAMES, "or the URL of a search server")
    if not documents:
        raise UsageError("there is nothing to search: name corpus files, or the URL of a search server as retriever")
    with _lock:
        key = (name, embedder, id(documents))
        if key not in _open:
            while len(_open) >= _MOST_OPEN:
                _open.pop(next(iter(_open)))
            _open[key] = (documents, _opened(name, documents, embedder))  # holding documents keeps their id theirs
        return _open[key][1]


def _opened(name: str, documents: Sequence[Document], embedder: str | None) -> Retriever:
    if name == "memory":
        return MemoryRetriever(documents)
    model = None
    if embedder is not None:
        from agentgym.tools.retrieval.embedders import SentenceTransformerEmbedder

        model = SentenceTransformerEmbedder(embedder)
    return open_retriever(corpus_of(documents), IndexOptions(backend=name, embedder=model))


def _remote(url: str) -> Retriever:
    from agentgym.tools.retrieval.client import RemoteRetriever  # httpx is slow to import

    return RemoteRetriever(url)


_MOST_OPEN = 4
_open: dict[tuple[str, str | None, int], tuple[Sequence[Document], Retriever]] = {}
_lock = threading.Lock()
