"""Small corpora, and an embedder that needs no model."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agentgym.tools.retrieval.types import Document

DOCUMENTS = (
    Document("lilu", "Lilu (mythology)", "A lilu is a masculine Akkadian word for a spirit, related to Alu, a demon."),
    Document(
        "gallu", "Gallu", "Gallus were great demons of the underworld who hauled off victims.", "https://x.example/g"
    ),
    Document("ur", "Ur", "Ur was a Sumerian city; its ziggurat still stands. " + "It had many temples. " * 40),
    Document("dice", "Demon Dice", "A dice game by Lester Smith in which players control monsters made of dice."),
    Document("café", "Café culture", "Le café noir; the Viennese coffee house. 北京 咖啡"),
    Document("empty", "", ""),
)


class WordEmbedder:
    """An embedder that hashes words into 64 dimensions; passages that share a query's words are near the query."""

    def __init__(self, name: str = "words-64") -> None:
        self.name = name
        self.num_texts = 0

    def passages(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.num_texts += len(texts)
        return np.stack([self.query(text) for text in texts])

    def query(self, text: str) -> npt.NDArray[np.float32]:
        vector = np.zeros(64, np.float32)
        for word in text.lower().split():
            vector[zlib.crc32(word.strip(".,;()?").encode()) % 64] += 1.0
        return np.asarray(vector / max(float(np.linalg.norm(vector)), 1.0), np.float32)
