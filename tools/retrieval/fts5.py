"""BM25 with SQLite's FTS5, on disk, without a dependency, for any number of documents.

FTS5 takes about a microsecond to score each matching document, and a question of ten words matches a third of a corpus.
The rarest words therefore select about a thousand candidates, which all words then score.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path

from agentgym.tools.retrieval.store import LocalRetriever, write_documents, writing
from agentgym.tools.retrieval.types import Document
from agentgym.tools.retrieval.words import query_words, telling_words

TITLE_WEIGHT = 2.0
"""Weight of a word in the title, relative to one in the text."""
MAX_CANDIDATES = 1000
"""Approximate number of documents that are scored per query; the last rare word may exceed it."""
_TOKENIZER = "porter unicode61 remove_diacritics 2"


def build(folder: Path, documents: Iterable[Document]) -> None:
    """Write the index into an empty folder."""
    with writing(folder) as connection:
        connection.execute(
            "CREATE VIRTUAL TABLE passages USING "
            f"fts5(title, text, content='documents', content_rowid='number', tokenize='{_TOKENIZER}')"
        )
        for number, document in write_documents(connection, documents):
            row = (number, document.title, document.text)
            connection.execute("INSERT INTO passages(rowid, title, text) VALUES (?, ?, ?)", row)
        connection.execute("INSERT INTO passages(passages) VALUES ('optimize')")
        connection.execute("INSERT INTO passages(passages, rank) VALUES ('rank', ?)", (f"bm25({TITLE_WEIGHT}, 1.0)",))
        connection.execute("CREATE VIRTUAL TABLE vocabulary USING fts5vocab(passages, 'row')")
        connection.execute("CREATE TABLE terms(term TEXT PRIMARY KEY, num_documents INTEGER NOT NULL) WITHOUT ROWID")
        # the vocabulary table is computed anew at each access, so copy it
        connection.execute("INSERT INTO terms SELECT term, doc FROM vocabulary")
        connection.execute("DROP TABLE vocabulary")


class Fts5Retriever(LocalRetriever):
    """A BM25 retriever with SQLite."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._stemmer = Stemmer()
        self.num_documents_with = functools.lru_cache(maxsize=100_000)(self._num_documents_with)

    def rank(self, query: str, k: int) -> list[tuple[int, float]]:
        counts = {word: self.num_documents_with(word) for word in query_words(query)}
        matching = match_expression(counts, len(self.store))
        if not matching:
            return []
        with self.store.reading() as connection:
            rows = connection.execute(
                "SELECT rowid, rank FROM passages WHERE passages MATCH ? ORDER BY rank LIMIT ?", (matching, k)
            )
            return [(number, -score) for number, score in rows]  # in FTS5 the best score is the most negative one

    def _num_documents_with(self, word: str) -> int:
        with self.store.reading() as connection:
            counts = [
                connection.execute("SELECT num_documents FROM terms WHERE term = ?", (term,)).fetchone()
                for term in self._stemmer.terms(word)
            ]
        return min((count[0] if count else 0 for count in counts), default=0)


def match_expression(counts: dict[str, int], num_documents: int) -> str:
    """Return FTS5's match expression for words with these document counts; empty if no document contains any.

    Example:
        >>> match_expression({"demon": 3, "lilu": 1, "gallu": 0}, num_documents=100)
        '"lilu" OR "demon"'
        >>> match_expression({"demon": 900, "lilu": 200}, num_documents=100_000)
        '("lilu") AND ("lilu" OR "demon")'
    """
    telling = telling_words(counts, num_documents)
    choosing: list[str] = []
    num_candidates = 0
    for word in telling:
        num_candidates += counts[word]
        if choosing and num_candidates > MAX_CANDIDATES:
            break
        choosing.append(word)
    if len(choosing) == len(telling):
        return _any_of(telling)
    return f"({_any_of(choosing)}) AND ({_any_of(telling)})"


def _any_of(words: list[str]) -> str:
    return " OR ".join(f'"{word}"' for word in words)


class Stemmer:
    """A stemmer that lets FTS5 itself compute the stems.

    Example:
        >>> Stemmer().terms("Running")
        ['run']
    """

    def __init__(self) -> None:
        self._local = threading.local()

    def terms(self, word: str) -> list[str]:
        """Return the index terms of a word: one, or several or none in rare scripts."""
        connection = self._connection()
        connection.execute("INSERT INTO one(rowid, word) VALUES (1, ?)", (word,))
        rows = connection.execute("SELECT term FROM parts ORDER BY offset").fetchall()
        connection.execute("INSERT INTO one(one) VALUES ('delete-all')")
        return [term for (term,) in rows]

    def _connection(self) -> sqlite3.Connection:
        kept = getattr(self._local, "connection", None)
        if kept is None or kept[0] != os.getpid():
            connection = sqlite3.connect(":memory:", isolation_level=None)
            connection.execute(f"CREATE VIRTUAL TABLE one USING fts5(word, content='', tokenize='{_TOKENIZER}')")
            connection.execute("CREATE VIRTUAL TABLE parts USING fts5vocab(one, 'instance')")
            kept = self._local.connection = (os.getpid(), connection)
        return kept[1]
