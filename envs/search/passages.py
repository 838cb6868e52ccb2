"""A corpus of passages from several files, each passage once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentgym.envs.search.question_files import Passage, read_json_records, text_of
from agentgym.errors import CorruptDataError
from agentgym.tools.retrieval.types import Document


class PassageBook:
    """Documents by passage: the same title and words are one document, whatever file they come from.

    A document's id is its title where no other has it, else the title with a number.

    Example:
        >>> book = PassageBook()
        >>> [book.add(Passage("Kur", text)) for text in ("A land.", "A  river.", "A river. ")]
        ['Kur', 'Kur #2', 'Kur #2']
        >>> [document.text for document in book.documents]
        ['A land.', 'A  river.']
    """

    def __init__(self) -> None:
        self._documents: dict[str, Document] = {}
        self._ids: dict[tuple[str, str], str] = {}

    @property
    def documents(self) -> tuple[Document, ...]:
        """All documents in the order they came."""
        return tuple(self._documents.values())

    def add(self, passage: Passage, url: str = "") -> str:
        """The id of the passage's document, which is made if there is none."""
        title, text = _encodable(passage.title.strip()), _encodable(passage.text.strip())
        key = (title, " ".join(text.split()))
        if key not in self._ids:
            doc_id, number = title or "untitled", 1
            while doc_id in self._documents:
                number += 1
                doc_id = f"{title or 'untitled'} #{number}"
            self._ids[key] = doc_id
            self._documents[doc_id] = Document(doc_id, title, text, url)
        return self._ids[key]

    def add_files(self, paths: Iterable[str | Path]) -> None:
        """Add the passages of corpus files.

        JSON objects of title and text (or sentences), lists of objects with ``title`` and ``text`` (or
        ``paragraph_text``, or Search-R1's ``contents``, whose first line is the title), and JSON lines of such.

        Raises:
            UsageError: there is no such file.
            CorruptDataError: an item is no passage; it is named.
        """
        for path in map(Path, paths):
            for number, item in enumerate(read_json_records(path)):
                try:
                    self.add(*_passage_of(item))
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    raise CorruptDataError(
                        f"{path}: item {number} is no passage with title and text: {error}"
                    ) from error


def _passage_of(item: Any) -> tuple[Passage, str]:
    if not isinstance(item, dict):
        title, text = item
        return Passage(title, text_of(text)), ""
    url = item.get("url") or ""
    if "contents" in item and "title" not in item:
        title, _, text = item["contents"].partition("\n")
        return Passage(title.strip().strip('"'), text), url
    text = next((item[name] for name in ("text", "paragraph_text", "contents") if name in item), None)
    if text is None:
        raise ValueError(f"it has {', '.join(sorted(item)) or 'nothing'}")
    return Passage(item["title"], text_of(text)), url


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()  # half a surrogate pair, which JSON can spell, has no UTF-8
