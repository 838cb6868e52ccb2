"""``agentgym/SearchQA-v0``: answer real questions by searching a corpus, a search server or the web."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from agentgym.envs.search.live_web import live_web
from agentgym.envs.search.question import Question
from agentgym.envs.search.question_files import Format
from agentgym.envs.search.question_set import QuestionSet, Sources, question_set
from agentgym.envs.search.search_env import SearchEnv
from agentgym.errors import MissingDataError, UsageError, require_known
from agentgym.tools.retrieval.corpus import corpus_of
from agentgym.tools.retrieval.indexes import BACKENDS, IndexOptions, open_retriever
from agentgym.tools.retrieval.memory import MemoryRetriever
from agentgym.tools.retrieval.types import Document, Retriever
from agentgym.types import Task, ToolCall

Paths = str | PathLike[str]
DATA_VARIABLE, FILE = "AGENTGYM_SHARED_DATA", "qa/hotpotqa_train.json"


class SearchQAEnv(SearchEnv):
    """Answer questions of HotpotQA, 2WikiMultihopQA, MuSiQue or Natural Questions by search.

    What is searched are the passages that come with the questions and those of the corpus files, each once. Where
    gold passages are known, the oracle opens them and answers. A question's split follows from its id.

    Args:
        questions: a file (JSON, JSON lines), or ``datasets:PATH[#CONFIG][@SPLIT]`` of the library ``datasets``; by
            default the HotpotQA questions that the environment variable ``AGENTGYM_SHARED_DATA`` leads to.
        corpus: files with more passages (:meth:`~agentgym.envs.search.question_set.PassageBook.add_files`).
        format: ``hotpotqa``, ``2wiki``, ``musique`` or ``nq``; by default told from the file.
        retriever: ``memory`` (BM25), a backend of :func:`~agentgym.tools.retrieval.indexes.open_retriever`
            (``fts5``, ``tantivy``, ``dense``, ``hybrid``), the URL of a search server, or a retriever, such as a
            search engine with a cassette.
        embedder: for ``dense`` and ``hybrid``, a model that sentence-transformers can load.
        engine: search the live web in place of passages: ``searxng``, ``brave``, or ``cassette`` for what was recorded.
        engine_url: address of the SearxNG instance.
        cassette: file of the web's recorded answers; each is asked for once, and played again.
        cassette_mode: ``auto``, ``record`` (ask anew) or ``replay`` (never ask).
        cassette_date: names the state of the web that is recorded or played.
        others: see :class:`~agentgym.envs.search.question_env.QuestionEnv`.

    Raises:
        UsageError: a file is missing or a value out of range; the message says what was expected.

    Example:
        >>> import json, tempfile
        >>> record = {"_id": "1", "question": "Where is Kur?", "answer": "below", "supporting_facts": [["Kur", 0]]}
        >>> record["context"] = [["Kur", ["Kur lies below."]], ["Anu", ["Anu rules."]]]
        >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        ...     json.dump([record], file)
        ...     file.flush()
        ...     env = SearchQAEnv(questions=file.name)
        >>> observation, info = env.reset(options={"task": "1"})
        >>> print(env.step("search: Kur")[0][0].text)
        1. Kur [id: Kur]
        Kur lies below.
    """

    def __init__(  # noqa: PLR0913  # one per option
        self,
        *,
        questions: Paths | None = None,
        corpus: Paths | Sequence[Paths] = (),
        format: Format | None = None,
        retriever: str | Retriever = "memory",
        embedder: str | None = None,
        engine: str = "",
        engine_url: str = "",
        cassette: str = "",
        cassette_mode: str = "auto",
        cassette_date: str = "",
        **others: Any,
    ) -> None:
        files = (corpus,) if isinstance(corpus, str | PathLike) else tuple(corpus)
        self.set: QuestionSet = question_set(Sources(questions_at(questions), tuple(map(str, files)), format))
        web = live_web(engine, engine_url, cassette, cassette_mode, cassette_date)
        self._is_live = web is not None
        self.is_live = web is not None and engine != "cassette"
        if web is not None:
            if retriever != "memory" or files:
                raise UsageError("engine searches the live web; leave retriever and corpus away")
            retriever = web.retriever()
        self.retriever = searched(retriever, self.set.documents, embedder) if isinstance(retriever, str) else retriever
        self._is_remote = isinstance(retriever, str) and retriever.startswith(SCHEMES)
        super().__init__(**others)

    def stop(self) -> None:
        if self._is_remote:  # others are shared, or belong to who handed them in
            self.retriever.close()

    def pose(self, task: Task) -> Question:
        question = self.set.question(task.id)
        # the passages that a data set calls gold are not the web's pages
        return replace(question, gold=(), queries=()) if self._is_live else question

    def tasks(self, split: str) -> Sequence[Task]:
        """60 % of the questions to train on, 20 % to validate, 20 % to test, by their ids."""
        return self.set.tasks(split)

    def next_call(self) -> ToolCall:
        if not self.question.gold and not self.progress.queries:  # nobody said where the answer is
            return ToolCall("search", {"query": self.question.text}, "0")
        return super().next_call()


def questions_at(questions: Paths | None) -> str:
    """Return the path of the questions.

    Raises:
        MissingDataError: neither the argument nor the environment variable names it; the message says what to do.
    """
    if questions is not None:
        return str(questions)
    folder = os.environ.get(DATA_VARIABLE)
    if folder is not None and Path(folder, FILE).is_file():
        return str(Path(folder, FILE))
    tried = f"{DATA_VARIABLE} is not set" if folder is None else f"{DATA_VARIABLE} is {folder!r}, without {FILE}"
    raise MissingDataError(
        "real questions do not come with agentgym: name them by questions=..., a file in the format of HotpotQA, "
        f"2WikiMultihopQA, MuSiQue or Natural Questions, or datasets:PATH[#CONFIG][@SPLIT] ({tried}); questions that "
        "need no data are those of agentgym/WikiWorld-v0"
    )


# ------------------------------------------- the retriever that an environment's option names, opened once in a process

NAMES = ("memory", *BACKENDS)
SCHEMES = ("http://", "https://")


def searched(name: str, documents: Sequence[Document], embedder: str | None = None) -> Retriever:
    """Return a retriever by name or URL, shared by the environments of a process as long as its documents are the same.

    Args:
        name: one of :data:`NAMES`, or the URL of a search server, which has documents of its own.
        documents: the documents to search.
        embedder: for ``dense`` and ``hybrid``, a model that sentence-transformers can load.

    Raises:
        UnknownNameError: no such retriever.
        UsageError: it needs an embedder, or the documents are none.
        MissingExtraError: the retriever's package is not installed.
    """
    if name.startswith(SCHEMES):
        return _remote(name)
    require_known("retriever", name, NAMES, "or the URL of a search server")
    if not documents:
        raise UsageError("there is nothing to search: name corpus files, or the URL of a search server as retriever")
    with _lock:
        key = (name, embedder, id(documents))
        if key not in _open:
            while len(_open) >= _MOST_OPEN:
                _open.pop(next(iter(_open)))
            _open[key] = (documents, _opened(name, documents, embedder))  # holding documents keeps their id theirs
        return _open[key][1]


def _opened(name: str, documents: Sequence[Document], embedder: str | None) -> Retriever:
    if name == "memory":
        return MemoryRetriever(documents)
    model = None
    if embedder is not None:
        from agentgym.tools.retrieval.embedders import SentenceTransformerEmbedder

        model = SentenceTransformerEmbedder(embedder)
    return open_retriever(corpus_of(documents), IndexOptions(backend=name, embedder=model))


def _remote(url: str) -> Retriever:
    from agentgym.tools.retrieval.client import RemoteRetriever  # httpx is slow to import

    return RemoteRetriever(url)


_MOST_OPEN = 4
_open: dict[tuple[str, str | None, int], tuple[Sequence[Document], Retriever]] = {}
_lock = threading.Lock()
