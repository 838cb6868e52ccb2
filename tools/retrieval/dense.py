"""Dense retrieval by the inner product of query and passage vectors, exact or with a faiss index."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.errors import EnvError, boundary, require_extra
from agentgym.tools.retrieval.embedders import Embedder
from agentgym.tools.retrieval.store import LocalRetriever, write_documents, writing
from agentgym.tools.retrieval.types import Document
from agentgym.tools.retrieval.words import readable_query

VECTORS = "vectors.npy"
FAISS = "vectors.faiss"
NUM_AT_ONCE = 256
"""Number of passages embedded per call."""


def build(folder: Path, documents: Iterable[Document], embedder: Embedder, faiss_factory: str = "") -> None:
    """Write the index into an empty folder.

    Args:
        folder: the empty folder.
        documents: the documents of the corpus.
        embedder: computes the vectors.
        faiss_factory: description of a faiss index for ``faiss.index_factory``, for example ``"HNSW32"``, instead of
            the exact matrix. Its vectors must fit into memory while it is built.

    Raises:
        MissingExtraError: a faiss index is requested and faiss is not installed.
    """
    faiss = imported_faiss() if faiss_factory else None
    blocks = []
    with writing(folder) as connection:
        written = write_documents(connection, documents)
        while some := list(itertools.islice(written, NUM_AT_ONCE)):
            blocks.append(embedder.passages([f"{document.title}\n{document.text}" for _, document in some]))
    matrix = np.concatenate(blocks) if blocks else np.zeros((0, 1), np.float32)
    if faiss is None:
        np.save(folder / VECTORS, matrix)
        return
    index = faiss.index_factory(matrix.shape[1], faiss_factory, faiss.METRIC_INNER_PRODUCT)
    index.train(matrix)
    index.add(matrix)
    faiss.write_index(index, str(folder / FAISS))


class DenseRetriever(LocalRetriever):
    """A retriever of the nearest passages. Its vectors are memory-mapped, so processes share them."""

    def __init__(self, folder: Path, embedder: Embedder) -> None:
        super().__init__(folder)
        self._embedder = embedder
        with boundary(EnvError, f"index at {folder} (move the folder away, and it is built anew)"):
            self._matrix: Any = None
            if (folder / VECTORS).exists():
                self._matrix = np.load(folder / VECTORS, mmap_mode="r")
            else:
                faiss = imported_faiss()
                self._faiss = faiss.read_index(str(folder / FAISS), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)

    def rank(self, query: str, k: int) -> list[tuple[int, float]]:
        with boundary(EnvError, "dense retrieval"):
            vector = self._embedder.query(readable_query(query))
            if self._matrix is None:
                scores, places = self._faiss.search(vector[None], k)
                return [(int(at) + 1, float(s)) for at, s in zip(places[0], scores[0], strict=True) if at >= 0]
            all_scores = self._matrix @ vector
            best = np.argpartition(-all_scores, k - 1)[:k]
            best = best[np.lexsort((best, -all_scores[best]))]
            return [(int(at) + 1, float(all_scores[at])) for at in best]


def imported_faiss() -> Any:
    """Import faiss.

    Raises:
        MissingExtraError: faiss is not installed.
    """
    require_extra("a faiss index", "dense", "faiss")
    import faiss

    return faiss
