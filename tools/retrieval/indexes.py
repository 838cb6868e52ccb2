"""A retriever for a corpus: its index is built if it is not in the cache, then opened."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track

from agentgym.cache import built_once, cache_folder
from agentgym.canonical import digest
from agentgym.errors import UsageError, require_known
from agentgym.tools.retrieval import dense, fts5, tantivy_index
from agentgym.tools.retrieval.corpus import Corpus
from agentgym.tools.retrieval.embedders import Embedder
from agentgym.tools.retrieval.fusion import HybridRetriever
from agentgym.tools.retrieval.types import Document, Retriever

BACKENDS = ("fts5", "tantivy", "dense", "hybrid")
FORMAT = 1
"""Version of the index folders. Folders of another version are left alone, and the index is built again."""
DESCRIPTION = "index.json"

Build = Callable[[Path, Iterable[Document]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions:
    """How a corpus is indexed.

    Attributes:
        backend: ``fts5`` (BM25 by SQLite, no dependency), ``tantivy`` (BM25, faster; extra ``search``), ``dense``
            (vectors; extra ``dense``) or ``hybrid`` (fts5 and dense, fused by rank).
        embedder: for ``dense`` and ``hybrid``.
        faiss_factory: a faiss index in place of the exact matrix, for example ``"HNSW32"``.
        cache: where indexes are kept; by default :func:`~agentgym.cache.cache_folder`.
        show_progress: a bar on standard error while an index is built, if that is a terminal.

    Raises:
        UsageError: there is no such backend, or it lacks its embedder.
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
                f"the backend {self.backend} needs an embedder, such as SentenceTransformerEmbedder(MODEL)"
            )


def open_retriever(corpus: Corpus, options: IndexOptions | None = None) -> Retriever:
    """A retriever over a corpus; the first call for this content builds its index, which takes a while.

    Any number of threads and processes may hold one, and may ask for it at the same time.

    Raises:
        CorruptDataError: the corpus cannot be read, or has two documents of one id.
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
    tantivy_index.imported_tantivy()  # before anything is built
    return tantivy_index.TantivyRetriever(_folder(corpus, options, "tantivy", tantivy_index.build))


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
        console = Console(stderr=True)
        is_shown = options.show_progress and console.is_terminal
        documents = corpus.documents()
        if is_shown:
            documents = track(documents, f"{backend} index", corpus.num_documents, console=console, transient=True)
        build(empty, documents)
        (empty / DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")

    return built_once(folder, build_with_progress)
