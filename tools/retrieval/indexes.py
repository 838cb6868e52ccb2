"""Retrievers for a corpus, whose index is built unless it is in the cache, and then opened."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.progress import track

from agentgym.cache import built_once, cache_folder
from agentgym.canonical import digest
from agentgym.errors import UsageError, require_known
from agentgym.progress import VisibleConsole
from agentgym.tools.retrieval import dense, fts5, tantivy_index
from agentgym.tools.retrieval.corpus import Corpus
from agentgym.tools.retrieval.embedders import Embedder
from agentgym.tools.retrieval.types import AsyncRetriever, Document, Hit, Retriever, adocument, asearch

BACKENDS = ("fts5", "tantivy", "dense", "hybrid")
FORMAT = 1
"""Version of the index folders. Folders of another version are ignored, and the index is built again."""
DESCRIPTION = "index.json"

Build = Callable[[Path, Iterable[Document]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions:
    """Settings of a corpus's index.

    Attributes:
        backend: ``fts5`` (BM25 by SQLite, no dependency), ``tantivy`` (BM25, faster; extra ``search``), ``dense``
            (vectors; extra ``dense``) or ``hybrid`` (fts5 and dense, fused by rank).
        embedder: computes the vectors for ``dense`` and ``hybrid``.
        faiss_factory: a faiss index instead of the exact matrix, for example ``"HNSW32"``.
        cache: folder of the indexes; by default :func:`~agentgym.cache.cache_folder`.
        show_progress: show a progress bar on standard error while an index is built, if it is a terminal.

    Raises:
        UsageError: there is no such backend, or its embedder is missing.
    """

    backend: str = "fts5"
    embedder: Embedder | None = None
    faiss_factory: str = ""
    cache: Path | None = None
    show_progress: bool = True

    def __post_init__(self) -> None:
        require_known("backend", self.backend, BACKENDS)
        if self.backend in ("dense", "hybrid") and self.embedder is None:
            raise UsageError(
                f"the backend {self.backend} needs an embedder: --model NAME in serve-search, embedder=NAME in an "
                "environment, or SentenceTransformerEmbedder(MODEL) in Python"
            )


def open_retriever(corpus: Corpus, options: IndexOptions | None = None) -> Retriever:
    """Open a retriever for a corpus. The first call for this content builds the index, which takes a while.

    Any number of threads and processes may open the same index at the same time.

    Raises:
        CorruptDataError: the corpus cannot be read, or two documents have the same id.
        MissingExtraError: the backend's package is not installed.
        EnvError: the index cannot be read.

    Example:
        >>> import tempfile
        >>> from agentgym.tools.retrieval.corpus import corpus_of
        >>> corpus = corpus_of([Document("1", "Lilu", "A demon of the night."), Document("2", "Ur", "A city.")])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     retriever = open_retriever(corpus, IndexOptions(cache=Path(folder)))
        ...     print(retriever.search("Which demons are there?", k=3)[0].title, len(retriever))
        ...     retriever.close()
        Lilu 2
    """
    options = options or IndexOptions()
    if options.backend == "hybrid":
        return HybridRetriever([_open_fts5(corpus, options), _open_dense(corpus, options)])
    return {"fts5": _open_fts5, "tantivy": _open_tantivy, "dense": _open_dense}[options.backend](corpus, options)


def _open_fts5(corpus: Corpus, options: IndexOptions) -> Retriever:
    return fts5.Fts5Retriever(_folder(corpus, options, "fts5", fts5.build))


def _open_tantivy(corpus: Corpus, options: IndexOptions) -> Retriever:
    tantivy_index.imported_tantivy()  # raise before the index is built
    words = {"tokenizer": tantivy_index.TOKENIZER}
    return tantivy_index.TantivyRetriever(_folder(corpus, options, "tantivy", tantivy_index.build, words))


def _open_dense(corpus: Corpus, options: IndexOptions) -> Retriever:
    assert options.embedder is not None
    build = partial(dense.build, embedder=options.embedder, faiss_factory=options.faiss_factory)
    settings = {"embedder": options.embedder.name, "faiss": options.faiss_factory}
    return dense.DenseRetriever(_folder(corpus, options, "dense", build, settings), options.embedder)


def _folder(
    corpus: Corpus, options: IndexOptions, backend: str, build: Build, settings: dict[str, str] | None = None
) -> Path:
    description = {"backend": backend, "corpus": corpus.digest, "format": FORMAT, **(settings or {})}
    folder = (options.cache or cache_folder()) / "indexes" / f"{backend}-{digest(description)}"

    def build_with_progress(empty: Path) -> None:
        console = VisibleConsole(stderr=True)
        is_shown = options.show_progress and console.is_terminal
        documents = corpus.documents()
        if is_shown:
            documents = track(documents, f"{backend} index", corpus.num_documents, console=console, transient=True)
        build(empty, documents)
        (empty / DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")

    return built_once(folder, build_with_progress)


# --------------------------------------------------------------------------- hybrid retrieval by reciprocal rank fusion

RRF_K = 60
"""Constant of reciprocal rank fusion, from the paper cited in :func:`fuse`."""
DEPTH = 50
"""Number of ranks of each retriever that count."""


def fuse(rankings: Sequence[Sequence[Hit]], k: int, rrf_k: int = RRF_K) -> tuple[Hit, ...]:
    """Return the best ``k`` documents of several rankings, scored by the sum of ``1 / (rrf_k + rank)``.

    Ranks count from 1. Among equal scores, the document that appears first, ranking by ranking, comes first. Source:
    "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods" (Cormack, Clarke, Buettcher
    2009).

    Example:
        >>> a, b = Hit("a", "A", "", 9.0), Hit("b", "B", "", 8.0)
        >>> [(hit.doc_id, round(hit.score, 5)) for hit in fuse([[a, b], [b]], k=2)]
        [('b', 0.03252), ('a', 0.01639)]
    """
    scores: dict[str, float] = {}
    first_seen: dict[str, Hit] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, 1):
            scores[hit.doc_id] = scores.get(hit.doc_id, 0.0) + 1 / (rrf_k + rank)
            first_seen.setdefault(hit.doc_id, hit)
    best = sorted(scores, key=lambda doc_id: -scores[doc_id])[: max(k, 0)]
    return tuple(Hit(doc_id, first_seen[doc_id].title, first_seen[doc_id].snippet, scores[doc_id]) for doc_id in best)


class HybridRetriever(AsyncRetriever):
    """A retriever that fuses several retrievers of the same corpus.

    Raises:
        UsageError: no retriever is given, or their numbers of documents differ.
    """

    def __init__(self, retrievers: Sequence[Retriever], rrf_k: int = RRF_K, depth: int = DEPTH) -> None:
        if not retrievers or len({len(retriever) for retriever in retrievers}) > 1:
            raise UsageError(
                f"a hybrid needs retrievers of the same corpus; got {[len(each) for each in retrievers]} documents"
            )
        self._retrievers = tuple(retrievers)
        self._rrf_k = rrf_k
        self._depth = depth

    def search(self, query: str, k: int) -> tuple[Hit, ...]:
        depth = max(k, self._depth)
        return fuse([retriever.search(query, depth) for retriever in self._retrievers], k, self._rrf_k)

    async def asearch(self, query: str, k: int) -> tuple[Hit, ...]:
        depth = max(k, self._depth)
        rankings = await asyncio.gather(*(asearch(retriever, query, depth) for retriever in self._retrievers))
        return fuse(rankings, k, self._rrf_k)

    def document(self, doc_id: str) -> Document:
        return self._retrievers[0].document(doc_id)

    async def adocument(self, doc_id: str) -> Document:
        return await adocument(self._retrievers[0], doc_id)

    def __len__(self) -> int:
        return len(self._retrievers[0])

    def close(self) -> None:
        for retriever in self._retrievers:
            retriever.close()
