"""Embedders, which turn texts into vectors for dense retrieval."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from agentgym.errors import EnvError, boundary, require_extra


class Embedder(Protocol):
    """A function from texts to vectors of one dimension, whose inner product measures relevance."""

    @property
    def name(self) -> str:
        """Name of model and settings. An index made with another name is not used."""
        ...

    def passages(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return unit vectors of passages, shape ``[len(texts), dimension]``."""
        ...

    def query(self, text: str) -> npt.NDArray[np.float32]:
        """Return the unit vector of a query, shape ``[dimension]``."""
        ...


class SentenceTransformerEmbedder:
    """A model of sentence-transformers on the CPU or a GPU (extra ``dense``).

    Args:
        model: a folder or hub name.
        query_prefix, passage_prefix: prefixes that the model was trained with, such as E5's ``"query: "``.

    Raises:
        MissingExtraError: sentence-transformers is not installed.
    """

    def __init__(
        self, model: str, *, query_prefix: str = "", passage_prefix: str = "", batch_size: int = 32, device: str = ""
    ) -> None:
        require_extra("dense retrieval", "dense", "sentence_transformers")
        from sentence_transformers import SentenceTransformer

        self.name = f"{_named(model)}|{query_prefix}|{passage_prefix}"
        self._prefixes = (query_prefix, passage_prefix)
        self._batch_size = batch_size
        with boundary(EnvError, f"loading the embedding model {model}"):
            self._model: Any = SentenceTransformer(model, device=device or None)

    def passages(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return unit vectors of passages; see :meth:`Embedder.passages`."""
        return self._encode([self._prefixes[1] + text for text in texts])

    def query(self, text: str) -> npt.NDArray[np.float32]:
        """Return the unit vector of a query; see :meth:`Embedder.query`."""
        vector: npt.NDArray[np.float32] = self._encode([self._prefixes[0] + text])[0]
        return vector

    def _encode(self, texts: list[str]) -> npt.NDArray[np.float32]:
        vectors = self._model.encode(
            texts, batch_size=self._batch_size, normalize_embeddings=True, show_progress_bar=False
        )
        return np.asarray(vectors, dtype=np.float32)


def _named(model: str) -> str:
    """Return a hub name unchanged, and a digest of files for a folder, since many folders are called ``model``."""
    folder = Path(model)
    if not folder.is_dir():
        return model
    hashed = hashlib.blake2b(digest_size=8)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        hashed.update(f"{path.relative_to(folder)}\n".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                hashed.update(block)
    return f"{folder.name}-{hashed.hexdigest()}"
