"""What the search tools need beyond the core: models as they are asked, and missing packages by name."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from testkit.corpora import DOCUMENTS, WordEmbedder

from agentgym.errors import MissingExtraError
from agentgym.tools.retrieval.corpus import corpus_of
from agentgym.tools.retrieval.embedders import SentenceTransformerEmbedder
from agentgym.tools.retrieval.indexes import IndexOptions, open_retriever
from agentgym.tools.web.fetch import Page
from agentgym.tools.web.retriever import readable_document


class Model:
    """In the place of a SentenceTransformer: a text's length and its first letter."""

    def __init__(self, name: str, device: str | None) -> None:
        self.asked: list[list[str]] = []

    def encode(
        self, texts: list[str], batch_size: int, normalize_embeddings: bool, show_progress_bar: bool
    ) -> list[list[float]]:
        assert normalize_embeddings and not show_progress_bar
        self.asked.append(texts)
        return [[float(len(text)), float(ord(text[0]))] for text in texts]


def test_a_model_sees_its_prefixes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(SentenceTransformer=Model))
    names = []
    for weights in ("one", "two"):
        folder = tmp_path / weights / "model"
        folder.mkdir(parents=True)
        (folder / "weights").write_text(weights)
        embedder = SentenceTransformerEmbedder(str(folder), query_prefix="q: ", passage_prefix="p: ")
        names.append(embedder.name)
    assert len(set(names)) == 2  # though both folders are called model
    assert all(name.startswith("model-") and name.endswith("|q: |p: ") for name in names)
    assert SentenceTransformerEmbedder("intfloat/e5-base-v2").name == "intfloat/e5-base-v2||"
    assert embedder.query("demon").tolist() == [8.0, ord("q")]
    passages = embedder.passages(["a", "bb"])
    assert passages.tolist() == [[4.0, ord("p")], [5.0, ord("p")]]
    assert passages.dtype == np.float32


@pytest.mark.parametrize(
    ("module", "extra", "options"),
    [
        ("tantivy", "search", IndexOptions(backend="tantivy")),
        ("faiss", "dense", IndexOptions(backend="dense", embedder=WordEmbedder(), faiss_factory="Flat")),
    ],
)
def test_a_backend_that_is_not_installed_is_named(
    module: str, extra: str, options: IndexOptions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path))
    with pytest.raises(MissingExtraError, match=rf"pip install -e '\.\[{extra}\]'"):
        open_retriever(corpus_of(DOCUMENTS), options)
    assert not list(tmp_path.glob("indexes/*/*"))


def test_other_packages_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[dense\]'"):
        SentenceTransformerEmbedder("model")
    with pytest.raises(MissingExtraError, match=r"\[search\]'"):
        readable_document(Page("https://a.example/", "text/html", "", b"<p>text"), "d")
