"""Passages of a made-up language, as many as wanted, from a seed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from agentgym.tools.retrieval.corpus import Corpus
from agentgym.tools.retrieval.types import Document

NUM_WORDS = 200_000
"""Words of the language; the n-th most frequent one occurs in proportion to 1 / (n + 2.7) (Zipf and Mandelbrot)."""
PASSAGE_WORDS = 100
_AT_ONCE = 1000
_SYLLABLES = [consonant + vowel for consonant in "bdfghjklmnprstvz" for vowel in "aeiou"]


def vocabulary() -> list[str]:
    """All words, the most frequent first: a word is its number, in syllables."""
    words = []
    for number in range(NUM_WORDS):
        rest, word = number + len(_SYLLABLES), ""
        while rest:
            rest, syllable = divmod(rest, len(_SYLLABLES))
            word += _SYLLABLES[syllable]
        words.append(word)
    return words


def passages(num_documents: int, seed: int = 0) -> Iterator[Document]:
    """Yield the passages, the same ones each time."""
    rng = np.random.default_rng(seed)
    words = np.array(vocabulary())
    cumulative = np.cumsum(1 / (np.arange(NUM_WORDS) + 2.7))
    cumulative /= cumulative[-1]
    for first in range(0, num_documents, _AT_ONCE):
        drawn = np.searchsorted(cumulative, rng.random((min(_AT_ONCE, num_documents - first), PASSAGE_WORDS)))
        for row, numbers in enumerate(drawn):
            spelled = words[numbers].tolist()
            yield Document(f"g{first + row}", " ".join(spelled[:3]), " ".join(spelled[3:]))


def corpus(num_documents: int, seed: int = 0) -> Corpus:
    """Return the passages as a corpus."""
    return Corpus(f"generated-{num_documents}-{seed}", lambda: passages(num_documents, seed), num_documents)


def queries(num_documents: int, num_queries: int, words_each: int = 8, seed: int = 1) -> list[str]:
    """Return questions of so many words of one of the first thousand passages, frequent and rare ones alike."""
    rng = np.random.default_rng(seed)
    some = [document.text.split() for document in itertools.islice(passages(num_documents), 1000)]
    chosen = [some[int(rng.integers(len(some)))] for _ in range(num_queries)]
    return [" ".join(rng.choice(text, words_each, replace=False).tolist()) for text in chosen]
