"""Hybrid retrieval by reciprocal rank fusion."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentgym.errors import UsageError
from agentgym.tools.retrieval.types import AsyncRetriever, Document, Hit, Retriever, adocument, asearch

RRF_K = 60
"""Cormack, Clarke and Buettcher's constant."""
DEPTH = 50
"""Ranks of each retriever that count."""


def fuse(rankings: Sequence[Sequence[Hit]], k: int, rrf_k: int = RRF_K) -> tuple[Hit, ...]:
    """The best ``k`` of several rankings of the same corpus: a document's score is the sum of 1 / (rrf_k + rank).

    Ranks count from 1; of equal scores, the one seen first, ranking by ranking, comes first. Source: "Reciprocal Rank
    Fusion outperforms Condorcet and individual Rank Learning Methods" (Cormack, Clarke, Buettcher 2009).

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
    """Several retrievers of the same corpus as one.

    Raises:
        UsageError: none is given, or they hold different numbers of documents.
    """

    def __init__(self, retrievers: Sequence[Retriever], rrf_k: int = RRF_K, depth: int = DEPTH) -> None:
        if not retrievers or len({len(retriever) for retriever in retrievers}) > 1:
            raise UsageError(
                f"a hybrid is of retrievers of one corpus; got {[len(each) for each in retrievers]} documents"
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
