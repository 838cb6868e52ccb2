"""tantivy: BM25 in Rust, several times as fast as SQLite's; the extra ``search``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentgym.errors import EnvError, MissingExtraError, boundary
from agentgym.tools.retrieval.fts5 import TITLE_WEIGHT
from agentgym.tools.retrieval.store import LocalRetriever, write_documents, writing
from agentgym.tools.retrieval.types import Document
from agentgym.tools.retrieval.words import query_words

FOLDER = "tantivy"
WRITER_BYTES = 64 << 20
"""Memory of the one thread that builds; what is more is on disk."""


def build(folder: Path, documents: Iterable[Document]) -> None:
    """Write the index into an empty folder.

    Raises:
        MissingExtraError: tantivy is not installed.
    """
    tantivy = imported_tantivy()
    (folder / FOLDER).mkdir()
    index = tantivy.Index(_schema(tantivy), path=str(folder / FOLDER))
    writer = index.writer(heap_size=WRITER_BYTES, num_threads=1)  # one thread: the same index each time
    with writing(folder) as connection:
        for number, document in write_documents(connection, documents):
            writer.add_document(tantivy.Document(number=number, title=document.title, text=document.text))
    writer.commit()
    writer.wait_merging_threads()


class TantivyRetriever(LocalRetriever):
    """BM25 by tantivy."""

    def __init__(self, folder: Path) -> None:
        tantivy = imported_tantivy()
        super().__init__(folder)
        with boundary(EnvError, f"index at {folder} (delete the folder, and it is built anew)"):
            self._index = tantivy.Index.open(str(folder / FOLDER))
            self._index.config_reader(reload_policy="manual")  # it never changes: nothing to watch
            self._searcher = self._index.searcher()

    def rank(self, query: str, k: int) -> list[tuple[int, float]]:
        words = " ".join(f'"{word}"' for word in query_words(query))  # quoted, a word is no operator
        with boundary(EnvError, f"index at {self.store.path.parent}"):
            parsed = self._index.parse_query(words, ["title", "text"], field_boosts={"title": TITLE_WEIGHT})
            found = self._searcher.search(parsed, k, count=False).hits
            numbers = self._searcher.fast_field_values("number", [address for _, address in found])
        return [(int(number), float(score)) for number, (score, _) in zip(numbers, found, strict=True)]


def _schema(tantivy: Any) -> Any:
    builder = tantivy.SchemaBuilder()
    builder.add_integer_field("number", fast=True)
    builder.add_text_field("title", tokenizer_name="en_stem")
    builder.add_text_field("text", tokenizer_name="en_stem")
    return builder.build()


def imported_tantivy() -> Any:
    """tantivy.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import tantivy
    except ImportError:
        raise MissingExtraError("the backend tantivy", "search") from None
    return tantivy
