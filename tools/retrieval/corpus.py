"""A corpus: documents that can be gone through more than once, and a digest of what they hold.

An index is kept under the digest, so a corpus that changed is indexed anew and an unchanged one never.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from agentgym.canonical import read_json
from agentgym.errors import CorruptDataError, UsageError
from agentgym.tools.retrieval.types import Document

_ID_FIELDS = ("id", "_id", "doc_id")
_TEXT_FIELDS = ("text", "contents")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents by a function, so that a corpus larger than memory is read as often as needed.

    Attributes:
        digest: names the content; for generated documents a name made of generator, version and seed will do.
        documents: gives them all, in the same order each time.
        num_documents: for progress bars; None if unknown.

    Example:
        >>> numbers = Corpus("numbers-v1", lambda: (Document(str(n), f"Number {n}", "...") for n in range(3)), 3)
        >>> [document.id for document in numbers.documents()]
        ['0', '1', '2']
    """

    digest: str
    documents: Callable[[], Iterable[Document]]
    num_documents: int | None = None


def corpus_of(documents: Sequence[Document]) -> Corpus:
    """A corpus of documents in memory.

    Example:
        >>> corpus_of([Document("a", "A", "text")]).num_documents
        1
    """
    hashed = hashlib.blake2b(digest_size=16)
    for document in documents:
        hashed.update(json.dumps(astuple(document)).encode())
    return Corpus(hashed.hexdigest(), lambda: documents, len(documents))


def jsonl_corpus(path: Path | str) -> Corpus:
    """A corpus in a file of one JSON object a line, which is never in memory as a whole.

    A line holds ``id`` (or ``_id``, ``doc_id``), ``text`` and, if there are any, ``title`` and ``url``. Lines as in
    Search-R1's corpora are read too: ``contents`` in place of title and text, the title being its first line, in
    quotation marks.

    Raises:
        UsageError: there is no such file.
        CorruptDataError: while reading, for a line that is no document; file and line are named.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"no corpus at {path}; a corpus is a file of one JSON object a line, with id, title and text")
    num_lines, hashed = 0, hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            hashed.update(block)
            num_lines += block.count(b"\n")
    return Corpus(hashed.hexdigest(), lambda: read_jsonl(path), num_lines)


def read_jsonl(path: Path) -> Iterator[Document]:
    """The documents of a file, one after another (see :func:`jsonl_corpus`)."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield document_from(read_json(line))
            except (ValueError, TypeError, AttributeError) as error:
                raise CorruptDataError(f"{path}, line {number}: {error}") from error


def document_from(fields: Mapping[str, object]) -> Document:
    """A document from a JSON object.

    Raises:
        ValueError: it lacks an id or a text, or one of them is no text.

    Example:
        >>> document_from({"id": 7, "contents": '"Lilu"\\nA demon of the night.'})
        Document(id='7', title='Lilu', text='A demon of the night.', url='')
    """
    doc_id = next((fields[name] for name in _ID_FIELDS if name in fields), None)
    text = next((fields[name] for name in _TEXT_FIELDS if name in fields), None)
    if doc_id is None or not isinstance(text, str):
        raise ValueError(f"a document needs id and text; this one has {', '.join(sorted(fields)) or 'nothing'}")
    title = fields.get("title")
    if title is None and "contents" in fields:
        title, _, text = text.partition("\n")
        title = title.strip().strip('"')
    return Document(str(doc_id), _encodable(str(title or "")), _encodable(text), str(fields.get("url") or ""))


def _encodable(text: str) -> str:
    # Half a surrogate pair, which JSON can spell, has no UTF-8.
    return text.encode(errors="replace").decode()
