"""A corpus: documents that can be iterated repeatedly, and a digest of their content.

Indexes are stored by digest, so a changed corpus is indexed again and an unchanged one is not.
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
    """Documents from a function, so that a corpus larger than memory can be read repeatedly.

    Attributes:
        digest: identifies the content; for generated documents, generator, version and seed are enough.
        documents: returns all documents, always in the same order.
        num_documents: number of documents for progress bars; None if unknown.

    Example:
        >>> numbers = Corpus("numbers-v1", lambda: (Document(str(n), f"Number {n}", "...") for n in range(3)), 3)
        >>> [document.id for document in numbers.documents()]
        ['0', '1', '2']
    """

    digest: str
    documents: Callable[[], Iterable[Document]]
    num_documents: int | None = None


def corpus_of(documents: Sequence[Document]) -> Corpus:
    """Return a corpus of documents in memory.

    Example:
        >>> corpus_of([Document("a", "A", "text")]).num_documents
        1
    """
    hashed = hashlib.blake2b(digest_size=16)
    for document in documents:
        hashed.update(json.dumps(astuple(document)).encode())
    return Corpus(hashed.hexdigest(), lambda: documents, len(documents))


def jsonl_corpus(path: Path | str) -> Corpus:
    """Return the corpus in a file with one JSON object per line, which is never loaded completely.

    A line holds ``id`` (or ``_id``, ``doc_id``), ``text`` and optionally ``title`` and ``url``. Lines in the format of
    Search-R1's corpora are accepted, too: ``contents`` instead of title and text, with the title in quotation marks on
    its first line.

    Raises:
        UsageError: there is no such file.
        CorruptDataError: the file has no documents. Also raised while reading, if a line is not a document; the message
            names file and line.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"no corpus at {path}; a corpus is a file of one JSON object a line, with id, title and text")
    num_lines, hashed, is_blank = 0, hashlib.blake2b(digest_size=16), True
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            is_blank = is_blank and not block.strip()
            hashed.update(block)
            num_lines += block.count(b"\n")
    if is_blank:
        raise CorruptDataError(f"{path} holds no documents; a corpus is a file of one JSON object a line")
    return Corpus(hashed.hexdigest(), lambda: read_jsonl(path), num_lines)


def read_jsonl(path: Path) -> Iterator[Document]:
    """Yield the documents of a file (see :func:`jsonl_corpus`)."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield document_from(read_json(line))
            except ValueError as error:
                raise CorruptDataError(f"{path}, line {number}: {error}") from error


def document_from(fields: Mapping[str, object]) -> Document:
    """Return the document in a JSON object.

    Raises:
        ValueError: it is no object, or id or text is missing or not a string.

    Example:
        >>> document_from({"id": 7, "contents": '"Lilu"\\nA demon of the night.'})
        Document(id='7', title='Lilu', text='A demon of the night.', url='')
    """
    if not isinstance(fields, Mapping):
        raise ValueError(f"a document is an object with id, title and text, not {str(fields)[:60]!r}")
    doc_id = next((fields[name] for name in _ID_FIELDS if name in fields), None)
    text = next((fields[name] for name in _TEXT_FIELDS if name in fields), None)
    if doc_id is None or text is None:
        raise ValueError(f"a document needs id and text; this one has {', '.join(sorted(fields)) or 'nothing'}")
    if not isinstance(text, str):
        raise ValueError(f"a document's text is a string, not {str(text)[:60]!r} ({type(text).__name__})")
    title = fields.get("title")
    if title is None and "contents" in fields:
        title, _, text = text.partition("\n")
        title = title.strip().strip('"')
    return Document(str(doc_id), _encodable(str(title or "")), _encodable(text), str(fields.get("url") or ""))


def _encodable(text: str) -> str:
    # JSON can express half of a surrogate pair, which UTF-8 cannot encode.
    return text.encode(errors="replace").decode()
