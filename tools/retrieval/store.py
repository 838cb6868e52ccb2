"""Documents in a SQLite file, which is written once and then read by any number of threads and processes.

Every index has such a file (FTS5 uses the same one), so that search engines need not store texts.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agentgym.errors import ClosedError, CorruptDataError, EnvError, boundary
from agentgym.tools.retrieval.types import Document, Hit, no_document
from agentgym.tools.retrieval.words import query_words, snippet_of

FILE = "documents.sqlite"
MAX_HITS = 1000
"""Most hits of one query."""


@contextmanager
def writing(folder: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a new store's file, which is flushed to disk at the end.

    There is no journal, since an unfinished store is discarded completely.
    """
    connection = sqlite3.connect(folder / FILE, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=OFF")
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("BEGIN")
        yield connection
        connection.execute("COMMIT")
    finally:
        connection.close()
    with (folder / FILE).open("rb") as file:
        os.fsync(file.fileno())


def write_documents(connection: sqlite3.Connection, documents: Iterable[Document]) -> Iterator[tuple[int, Document]]:
    """Write documents one by one and yield each with its number, from 1, for the indexer.

    Raises:
        CorruptDataError: two documents have the same id.
    """
    connection.execute(
        "CREATE TABLE documents"
        "(number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, text TEXT NOT NULL, "
        "url TEXT NOT NULL)"
    )
    for number, document in enumerate(documents, 1):
        row = (number, document.id, document.title, document.text, document.url)
        try:
            connection.execute("INSERT INTO documents VALUES (?, ?, ?, ?, ?)", row)
        except sqlite3.IntegrityError:
            raise CorruptDataError(f"two documents of the corpus have the id {document.id!r}") from None
        yield number, document


class DocumentStore:
    """The documents of an index folder, read-only.

    There is one connection per thread and process. Connections treat the file as immutable, so readers need no locks.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._local = threading.local()
        self._is_closed = False
        with self.reading() as connection:
            (self._num_documents,) = connection.execute("SELECT coalesce(max(number), 0) FROM documents").fetchone()

    def __len__(self) -> int:
        return int(self._num_documents)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield this thread's connection; errors in the ``with`` block become errors of the index.

        Raises:
            EnvError: the file cannot be read.
            ClosedError: after ``close``.
        """
        if self._is_closed:
            raise ClosedError(f"the index at {self.path.parent} is closed; open it again")
        with boundary(EnvError, f"index at {self.path.parent} (move the folder away, and it is built anew)"):
            kept = getattr(self._local, "connection", None)
            if kept is None or kept[0] != os.getpid():  # a connection cannot be used after a fork
                uri = f"{self.path.absolute().as_uri()}?mode=ro&immutable=1"
                kept = (os.getpid(), sqlite3.connect(uri, uri=True, check_same_thread=False))
                self._local.connection = kept
            yield kept[1]

    def by_number(self, numbers: Sequence[int]) -> list[Document]:
        """Return the documents with these numbers, in this order."""
        with self.reading() as connection:
            marks = ",".join("?" * len(numbers))
            rows = connection.execute(
                f"SELECT number, id, title, text, url FROM documents WHERE number IN ({marks})", list(numbers)
            )
            found = {row[0]: Document(*row[1:]) for row in rows}
        return [found[number] for number in numbers]

    def by_id(self, doc_id: str) -> Document:
        """Return a document by its id.

        Raises:
            ToolError: of type ``unknown_document``; the message names alphabetically close ids.
        """
        doc_id = doc_id.encode(errors="replace").decode()
        with self.reading() as connection:
            row = connection.execute("SELECT id, title, text, url FROM documents WHERE id = ?", (doc_id,)).fetchone()
            if row is not None:
                return Document(*row)
            near = connection.execute(
                "SELECT * FROM (SELECT id FROM documents WHERE id > ?1 ORDER BY id LIMIT 3) UNION ALL "
                "SELECT * FROM (SELECT id FROM documents WHERE id < ?1 ORDER BY id DESC LIMIT 3)",
                (doc_id,),
            ).fetchall()
        raise no_document(doc_id, [name for (name,) in near])

    def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        self._local = threading.local()


class LocalRetriever:
    """Base class of retrievers with an index folder; subclasses implement the ranking."""

    def __init__(self, folder: Path) -> None:
        self.store = DocumentStore(folder)

    def rank(self, query: str, k: int) -> list[tuple[int, float]]:
        """Return numbers and scores of the best ``k`` documents, best first."""
        raise NotImplementedError

    def search(self, query: str, k: int) -> tuple[Hit, ...]:
        """Return the best documents; see :meth:`~agentgym.tools.retrieval.types.Retriever.search`."""
        words = query_words(query)
        ranked = self.rank(query, min(k, len(self.store), MAX_HITS)) if k > 0 and len(self.store) else []
        documents = self.store.by_number([number for number, _ in ranked])
        return tuple(
            Hit(document.id, document.title, snippet_of(document.text, words), score)
            for document, (_, score) in zip(documents, ranked, strict=True)
        )

    def document(self, doc_id: str) -> Document:
        """Return a document; see :meth:`~agentgym.tools.retrieval.types.Retriever.document`."""
        return self.store.by_id(doc_id)

    def __len__(self) -> int:
        return len(self.store)

    def close(self) -> None:
        """Close the files."""
        self.store.close()
