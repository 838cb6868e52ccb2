"""BM25 with tantivy, a Rust library that is several times as fast as SQLite (extra ``search``).

It scores the title as a separate field. Because titles are short, their words weigh enough without a factor.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentgym.errors import EnvError, boundary, require_extra
from agentgym.tools.retrieval.store import LocalRetriever, write_documents, writing
from agentgym.tools.retrieval.types import Document
from agentgym.tools.retrieval.words import query_words, telling_words

FOLDER = "tantivy"
TOKENIZER = "folded_en_stem"
_LONGEST_TERM = 30_000  # bytes; tantivy takes 65,530
WRITER_BYTES = 64 << 20
"""Memory of the indexing thread in bytes; further data go to disk."""


def build(folder: Path, documents: Iterable[Document]) -> None:
    """Write the index into an empty folder.

    Raises:
        MissingExtraError: tantivy is not installed.
    """
    tantivy = imported_tantivy()
    (folder / FOLDER).mkdir()
    index = tantivy.Index(_schema(tantivy), path=str(folder / FOLDER))
    index.register_tokenizer(TOKENIZER, _stemmer(tantivy))
    writer = index.writer(heap_size=WRITER_BYTES, num_threads=1)  # one thread makes the index deterministic
    with writing(folder) as connection:
        for number, document in write_documents(connection, documents):
            writer.add_document(tantivy.Document(number=number, title=document.title, text=document.text))
    writer.commit()
    writer.wait_merging_threads()


class TantivyRetriever(LocalRetriever):
    """A BM25 retriever with tantivy."""

    def __init__(self, folder: Path) -> None:
        tantivy = imported_tantivy()
        super().__init__(folder)
        with boundary(EnvError, f"index at {folder} (move the folder away, and it is built anew)"):
            self._index = tantivy.Index.open(str(folder / FOLDER))
            self._index.register_tokenizer(TOKENIZER, _stemmer(tantivy))
            self._index.config_reader(reload_policy="manual")  # the index never changes, so it need not be watched
            self._searcher = self._index.searcher()
        self._stemmer = _stemmer(tantivy)
        self.num_documents_with = functools.lru_cache(maxsize=100_000)(self._num_documents_with)

    def rank(self, query: str, k: int) -> list[tuple[int, float]]:
        counts = {word: self.num_documents_with(word) for word in query_words(query)}
        # quoted, so that no word is an operator
        words = " ".join(f'"{word}"' for word in telling_words(counts, len(self.store)))
        with boundary(EnvError, f"index at {self.store.path.parent}"):
            parsed = self._index.parse_query(words, ["title", "text"])
            found = self._searcher.search(parsed, k, count=False).hits
            numbers = self._searcher.fast_field_values("number", [address for _, address in found])
        return [(int(number), float(score)) for number, (score, _) in zip(numbers, found, strict=True)]

    def _num_documents_with(self, word: str) -> int:
        with boundary(EnvError, f"index at {self.store.path.parent}"):
            terms = self._stemmer.analyze(word)
            return min((self._documents_with(term) for term in terms), default=0)

    def _documents_with(self, term: str) -> int:
        return max(int(self._searcher.doc_freq(field, term)) for field in ("title", "text"))


def _stemmer(tantivy: Any) -> Any:
    """Return the index's tokenizer."""
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    # folded as fts5 does; runs of a script without blanks are long
    steps = (tantivy.Filter.lowercase(), tantivy.Filter.ascii_fold(), tantivy.Filter.stemmer("english"))
    for step in (tantivy.Filter.remove_long(_LONGEST_TERM), *steps):
        builder = builder.filter(step)
    return builder.build()


def _schema(tantivy: Any) -> Any:
    builder = tantivy.SchemaBuilder()
    builder.add_integer_field("number", fast=True)
    builder.add_text_field("title", tokenizer_name=TOKENIZER)
    builder.add_text_field("text", tokenizer_name=TOKENIZER)
    return builder.build()


def imported_tantivy() -> Any:
    """Import tantivy.

    Raises:
        MissingExtraError: tantivy is not installed.
    """
    require_extra("the backend tantivy", "search", "tantivy")
    import tantivy

    return tantivy
