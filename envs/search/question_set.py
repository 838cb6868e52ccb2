"""A question file and its corpus, read once in a process and shared by its environments."""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.envs.search.question import Question
from agentgym.envs.search.question_files import (
    DATASETS,
    Format,
    Passage,
    QuestionRecord,
    read_json_records,
    read_questions,
    text_of,
)
from agentgym.envs.splits import SPLIT_SHARES, is_byte_in_split
from agentgym.errors import CorruptDataError, UsageError, require_known
from agentgym.tools.retrieval.types import Document
from agentgym.types import Task


@dataclass(frozen=True, slots=True)
class Sources:
    """The files that a question set is read from."""

    questions: str
    corpus: tuple[str, ...] = ()
    format: Format | None = None


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Questions by id, and the documents of the files and of the questions themselves."""

    questions: Mapping[str, Question]
    documents: tuple[Document, ...]

    def question(self, name: str) -> Question:
        """Return a question by the id of its task.

        Raises:
            UsageError: there is none.
        """
        if name not in self.questions:
            raise UsageError(
                f"task {name!r} is none of the {len(self.questions)} questions of this file; take tasks from this "
                "environment's tasks(split)"
            )
        return self.questions[name]

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the questions of a split, in the file's order; a question's split depends on its id alone.

        Raises:
            UnknownNameError: no such split.
        """
        require_known("split", split, SPLIT_SHARES)
        return [
            Task(
                id=name,
                split=split,
                seed=int.from_bytes(_digest(name)[1:5], "big"),
                data={"question": question.text, "answers": question.answers},
            )
            for name, question in self.questions.items()
            if split_of(name) == split
        ]


def split_of(question_id: str) -> str:
    """Return the split a question belongs to, whatever file it is read from.

    Example:
        >>> [split_of(name) for name in ("5a77ec115542992a6e59dff7", "q1", "q2")]
        ['train', 'test', 'train']
    """
    first = _digest(question_id)[0]
    return next(split for split in SPLIT_SHARES if is_byte_in_split(first, split))


def question_set(sources: Sources) -> QuestionSet:
    """Return the set of these sources; read again if a file has changed.

    Raises:
        UsageError: there is no such file, or nothing in it.
        CorruptDataError: a record cannot be read.
    """
    key = (sources, tuple(_stamp(path) for path in (sources.questions, *sources.corpus)))
    with _lock:
        if key not in _read:
            while len(_read) >= _MOST_SETS:
                _read.pop(next(iter(_read)))
            _read[key] = _read_set(sources)
        return _read[key]


def _read_set(sources: Sources) -> QuestionSet:
    book, questions = PassageBook(), {}
    records = read_questions(sources.questions, sources.format)
    _warn_of_missing(records, sources.questions)
    for record in records:
        ids = [book.add(passage) for passage in record.passages]
        gold = tuple(dict.fromkeys(ids[place] for place in record.gold))
        titles = {ids[place]: record.passages[place].title for place in record.gold}
        queries = tuple(titles[doc_id] for doc_id in gold)
        questions[record.id] = Question(record.text, record.answers, gold, queries)
    book.add_files(sources.corpus)
    return QuestionSet(questions, book.documents)


def _warn_of_missing(records: Sequence[QuestionRecord], source: str) -> None:
    lacking = [record for record in records if record.missing]
    if lacking:
        warnings.warn(
            f"{source}: {len(lacking)} of {len(records)} questions do not bring along all passages of "
            f"supporting_facts, such as {lacking[0].missing[0]!r} of question {lacking[0].id!r}; the oracle does "
            "without these, and agents may not find the answer",
            stacklevel=2,
        )


def _stamp(path: str) -> tuple[int, int]:
    if path.startswith(DATASETS) or not Path(path).is_file():
        return (0, 0)
    found = Path(path).stat()
    return (found.st_mtime_ns, found.st_size)


def _digest(question_id: str) -> bytes:
    return hashlib.blake2b(question_id.encode(errors="replace"), digest_size=8).digest()


_MOST_SETS = 4
_read: dict[tuple[Sources, tuple[tuple[int, int], ...]], QuestionSet] = {}
_lock = threading.Lock()


# ----------------------------------------------------------- A corpus of passages from several files, each passage once


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
        """Return the id of the passage's document, which is made if there is none."""
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
