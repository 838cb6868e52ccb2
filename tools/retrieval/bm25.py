"""BM25 search over short texts, with the same ranking on every machine.

Source: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009); constants and stop
words are those of Lucene's English analyser as Anserini runs it, which WebShop searches with. Plurals are stripped
by the rules of Harman, "How Effective is Suffixing?" (1991); Lucene strips more.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

K1, B = 0.9, 0.4
NUM_RESULTS = 50
"""Most results of a search."""

_TERM = re.compile(r"[a-z0-9]+")
_STOP: Final = """
    a an and are as at be but by for if in into is it no not of on or such that the their then there these they this
    to was will with"""
_STOP_WORDS: Final = frozenset(_STOP.split())
_STEPS = 10_000  # weights are integer multiples of this fraction, so that sums do not depend on the order of terms
_REMEMBERED = 1 << 12


class SearchIndex:
    """An index that ranks texts, identified by their position, for a query.

    Example:
        >>> index = SearchIndex(["red running shoes", "blue mug", "red mug", "red mug"])
        >>> index.search("a red mugs!")
        (2, 3, 1, 0)
        >>> index.search("teapot")
        ()
    """

    def __init__(self, texts: Iterable[str]) -> None:
        places: dict[str, array[int]] = {}
        counts: dict[str, array[int]] = {}
        lengths = array("i")
        for place, text in enumerate(texts):
            terms = terms_of(text)
            lengths.append(len(terms))
            for term, count in Counter(terms).items():
                if term not in places:
                    places[term], counts[term] = array("i"), array("i")
                places[term].append(place)
                counts[term].append(count)
        self._num_texts = len(lengths)
        length = np.frombuffer(lengths, dtype=np.int32) if lengths else np.zeros(0, dtype=np.int32)
        norm = K1 * (1 - B + B * length / max(1.0, float(length.mean()) if len(length) else 1.0))
        self._postings: dict[str, tuple[NDArray[np.int32], NDArray[np.int32]]] = {}
        for term, held in places.items():
            texts_with = np.frombuffer(held, dtype=np.int32)
            repeats = np.frombuffer(counts[term], dtype=np.int32)
            rarity = math.log(1 + (self._num_texts - len(held) + 0.5) / (len(held) + 0.5))
            weights = np.rint(_STEPS * rarity * repeats / (repeats + norm[texts_with])).astype(np.int32)
            self._postings[term] = (texts_with, weights)
        self.search = lru_cache(maxsize=_REMEMBERED)(self._search)
        """Positions of the best texts for a query, best first; at most 50, equals in order of position."""

    def _search(self, query: str) -> tuple[int, ...]:
        scores = np.zeros(self._num_texts, dtype=np.int64)
        for term in terms_of(query):
            if term in self._postings:
                texts_with, weights = self._postings[term]
                scores[texts_with] += weights
        found = np.flatnonzero(scores)
        rank = scores[found] * self._num_texts - found  # distinct terms in a fixed order
        if len(found) > NUM_RESULTS:
            best = np.argpartition(-rank, NUM_RESULTS)[:NUM_RESULTS]
            found, rank = found[best], rank[best]
        return tuple(found[np.argsort(-rank)].tolist())


def terms_of(text: str) -> list[str]:
    """Return the search terms of a text, with repetitions.

    Example:
        >>> terms_of("The Berries of Glass-Tables")
        ['berry', 'glass', 'table']
    """
    return [_singular(word) for word in _TERM.findall(text.lower()) if word not in _STOP_WORDS]


@lru_cache(maxsize=1 << 16)
def _singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith(("us", "ss")):
        return word
    if word.endswith("ies"):
        return word if word.endswith(("eies", "aies")) else word[:-3] + "y"
    return word[:-1]
