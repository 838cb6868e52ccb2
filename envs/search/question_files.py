"""Questions as HotpotQA, 2WikiMultihopQA, MuSiQue and Natural Questions write them, with the passages they bring.

Formats by their authors: HotpotQA and 2WikiMultihopQA (``_id``, ``question``, ``answer``, ``context`` of titles and
sentences, ``supporting_facts``), MuSiQue (``paragraphs``, ``question_decomposition``, ``answer_aliases``,
``answerable``), Natural Questions as NQ-open (``question`` and a list ``answer``), as DPR (``answers``,
``positive_ctxs``) and as FlashRAG and Search-R1 (``golden_answers``). Hugging Face's columns are read as well.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from agentgym.canonical import read_json
from agentgym.envs.rows import read_json_file, read_json_lines, read_utf8
from agentgym.errors import CorruptDataError, MissingDataError, MissingExtraError, UsageError, unknown_name

Format = Literal["hotpotqa", "2wiki", "musique", "nq"]
DATASETS: Final = "datasets:"
"""Prefix of a name for the ``datasets`` library: ``datasets:PATH[#CONFIG][@SPLIT]``."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that a question brings along."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class QuestionRecord:
    """A question of a file."""

    id: str
    text: str
    answers: tuple[str, ...]
    passages: tuple[Passage, ...] = ()
    """All its passages, distractors included."""
    gold: tuple[int, ...] = ()
    """Indices of the passages that contain the answer, in the order of reading."""
    missing: tuple[str, ...] = ()
    """Titles of passages that the file says contain the answer and that the question does not bring along."""


Record = Mapping[str, Any]


def read_questions(source: str, format: Format | None = None) -> tuple[QuestionRecord, ...]:
    """Return the questions of a file or of a ``datasets`` data set, without those that have no answer.

    Args:
        source: a path to JSON (a list) or JSON lines, or ``datasets:PATH[#CONFIG][@SPLIT]``.
        format: by default, told from the first record's keys.

    Raises:
        UsageError: no such file, no question, or an unknown format.
        CorruptDataError: a record that cannot be read, or that has the id of another question; it is named.
    """
    if format is not None and format not in get_args(Format):
        raise unknown_name("question format", format, get_args(Format))
    raw = list(_from_datasets(source) if source.startswith(DATASETS) else read_json_records(Path(source)))
    if not raw:
        raise UsageError(f"{source} holds no questions")
    read = _READERS[format or format_of(raw[0], source)]
    found: dict[str, QuestionRecord] = {}
    for number, record in enumerate(raw):
        try:
            question = read(record)
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
            said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise CorruptDataError(f"{source}: question {number} is not as its format has it: {said}") from error
        if question.answers and found.setdefault(question.id, question).text != question.text:
            raise CorruptDataError(
                f"{source}: question {number} has the id {question.id!r} of another question; ids must differ"
            )
    if not found:
        raise UsageError(f"{source}: none of {len(raw)} questions has an answer")
    return tuple(found.values())


def read_json_records(path: Path) -> Iterator[Any]:
    """Yield the items of a JSON list, or the lines of a JSON lines file; a JSON object of titles gives ``(title,
    text)``.

    Raises:
        UsageError: there is no such file.
        CorruptDataError: it is not UTF-8 or not JSON.
    """
    if not path.is_file():
        raise MissingDataError(f"no file {path}; expected JSON or JSON lines")
    text = read_utf8(path).strip()
    if path.suffix == ".jsonl" or text[:1] not in ("[", "{") or _is_lines(text):
        yield from read_json_lines(path)
        return
    whole = read_json_file(path)
    yield from whole.items() if isinstance(whole, dict) else whole


def format_of(record: object, source: str) -> Format:
    """Return the format of a record, by its keys.

    Raises:
        UsageError: nothing that is known.

    Example:
        >>> format_of({"question": "Who?", "paragraphs": []}, "a file")
        'musique'
    """
    keys = set(record) if isinstance(record, Mapping) else set()
    if "paragraphs" in keys:
        return "musique"
    if "context" in keys:
        return "hotpotqa"
    if "question" in keys and keys & {"answer", "answers", "golden_answers"}:
        return "nq"
    raise UsageError(
        f"{source}: cannot tell the format from the keys {', '.join(sorted(map(str, keys))) or 'of its first item'}; "
        f"known formats: {', '.join(get_args(Format))}"
    )


def _is_lines(text: str) -> bool:
    first, _, rest = text.partition("\n")
    try:
        read_json(first)
    except ValueError:
        return False
    return bool(rest.strip())


def _from_datasets(name: str) -> Iterable[object]:
    path, _, split = name.removeprefix(DATASETS).partition("@")
    path, _, config = path.partition("#")
    try:
        library = importlib.import_module("datasets")  # only here: nothing else of environments needs it
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"the data set {path!r}", "trl", "pip install datasets") from error
    try:
        rows: Iterable[Any] = library.load_dataset(path, config or None, split=split or "train")
        return rows
    except (OSError, ValueError) as error:
        raise UsageError(f"the library datasets has no {name.removeprefix(DATASETS)!r}: {error}") from error


def _hotpotqa(record: Record) -> QuestionRecord:
    context, facts = record["context"], record.get("supporting_facts", ())
    pairs = zip(context["title"], context["sentences"], strict=True) if isinstance(context, Mapping) else context
    passages = tuple(Passage(title, text_of(sentences)) for title, sentences in pairs)
    titles = facts["title"] if isinstance(facts, Mapping) else [title for title, _ in facts]
    place_of = {passage.title: place for place, passage in enumerate(passages)}
    gold = tuple(place_of[title] for title in dict.fromkeys(titles) if title in place_of)
    missing = tuple(title for title in dict.fromkeys(titles) if title not in place_of)
    answers = _texts(record.get("answer"))
    return QuestionRecord(_id_of(record), record["question"].strip(), answers, passages, gold, missing)


def _musique(record: Record) -> QuestionRecord:
    passages = tuple(Passage(each["title"], each["paragraph_text"]) for each in record["paragraphs"])
    place_of = {each.get("idx", place): place for place, each in enumerate(record["paragraphs"])}
    support = [step.get("paragraph_support_idx") for step in record.get("question_decomposition", ())]
    gold = dict.fromkeys(place_of[number] for number in support if number is not None)
    is_answerable = record.get("answerable", True)
    answers = (*_texts(record.get("answer")), *_texts(record.get("answer_aliases"))) if is_answerable else ()
    return QuestionRecord(
        _id_of(record), record["question"].strip(), tuple(dict.fromkeys(answers)), passages, tuple(gold)
    )


def _nq(record: Record) -> QuestionRecord:
    answers = next((record[name] for name in ("golden_answers", "answers", "answer") if record.get(name)), ())
    positive = [Passage(each.get("title", ""), each["text"]) for each in record.get("positive_ctxs", ())]
    return QuestionRecord(
        _id_of(record), record["question"].strip(), _texts(answers), tuple(positive), (0,) if positive else ()
    )


_READERS: Final[dict[Format, Callable[[Record], QuestionRecord]]] = {
    "hotpotqa": _hotpotqa,
    "2wiki": _hotpotqa,
    "musique": _musique,
    "nq": _nq,
}


def text_of(text: str | Sequence[str]) -> str:
    """Return a text, joining a list of sentences."""
    return (text if isinstance(text, str) else "".join(text)).strip()


def _texts(given: Any) -> tuple[str, ...]:
    texts = (given,) if isinstance(given, str) else tuple(given or ())
    return tuple(text for text in texts if text.strip())


def _id_of(record: Record) -> str:
    """Return the question's id; without one, an id made of its text."""
    given = next((record[name] for name in ("_id", "id", "question_id") if name in record), None)
    if given is not None:
        return str(given)
    return hashlib.blake2b(record["question"].strip().encode(errors="replace"), digest_size=8).hexdigest()
