"""``agentgym/GAIA-v0``: GAIA's questions, with search, pages, Python, a shell and the question's file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final

from agentgym.call_syntax import format_call
from agentgym.canonical import canonical
from agentgym.env.worker_thread import run_coroutine
from agentgym.envs.code.sandbox_env import SandboxEnv
from agentgym.envs.code.workspace import Assignment, Files, Grade, packed_bytes
from agentgym.envs.rows import read_rows, text_field
from agentgym.envs.search.live_web import live_web
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import CorruptDataError, EnvError, MissingDataError, UsageError, boundary, require_known
from agentgym.scoring.gaia import is_gaia_answer
from agentgym.tool import tool
from agentgym.tools.files import ReadFileTool
from agentgym.tools.python import PythonTool
from agentgym.tools.reading import Budget
from agentgym.tools.search import Reading, SearchTools
from agentgym.tools.shell import BashTool
from agentgym.tools.submit import SubmitAnswerTool
from agentgym.types import Message, Observation, Task, ToolCall

# -------------------------------------------- GAIA's questions from its ``metadata`` files, with the files beside them


FOLDERS: Final = {"valid": "validation", "test": "test"}
"""GAIA's folders by split."""
_METADATA: Final = ("metadata.jsonl", "metadata.parquet")
_HIDDEN: Final = "?"
"""Placeholder for the hidden answers of the test split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaiaQuestion:
    """A question with its answer and its file."""

    id: str
    text: str
    answer: str
    level: str
    split: str
    path: Path | None = None


def read_gaia(folder: str | Path) -> Mapping[str, GaiaQuestion]:
    """Return the questions with known answers by id.

    Args:
        folder: folder with ``validation/metadata.jsonl`` (or ``.parquet``), such as ``2023`` of the data set.

    Raises:
        UsageError: there is no such folder or file, or a question's file is missing.
        CorruptDataError: a row is incomplete, or an id occurs twice.
    """
    return _read(Path(folder).expanduser().resolve())


@lru_cache(maxsize=4)
def _read(folder: Path) -> Mapping[str, GaiaQuestion]:
    found: dict[str, GaiaQuestion] = {}
    for split, name in FOLDERS.items():
        path = next((folder / name / file for file in _METADATA if (folder / name / file).is_file()), None)
        for number, row in enumerate(read_rows(path) if path is not None else ()):
            question = _question(row, f"{path}, row {number}", split, folder / name)
            if question is not None and question.id in found:
                raise CorruptDataError(f"{path}, row {number}: the id {question.id!r} is there twice")
            if question is not None:
                found[question.id] = question
    if not found:
        lacks = "has no questions with answers" if folder.is_dir() else "does not exist"
        raise MissingDataError(
            f"{folder} {lacks}; data_dir is the folder `2023` of GAIA, with "
            "validation/metadata.jsonl or validation/metadata.parquet and the files beside it"
        )
    return found


def _question(row: Mapping[str, Any], place: str, split: str, folder: Path) -> GaiaQuestion | None:
    """Return the question of a row, or None if its answer is hidden, as in the test split."""
    try:
        name, text = text_field(row, "task_id"), text_field(row, "Question")
        answer, level, file = text_field(row, "Final answer"), text_field(row, "Level"), str(row.get("file_name") or "")
    except KeyError as error:
        raise CorruptDataError(f"{place} has no {error}; its keys are {', '.join(map(str, row))}") from None
    except ValueError as error:
        raise CorruptDataError(f"{place}: {error}") from None
    if answer == _HIDDEN:
        return None
    if Path(file).name != file:
        raise CorruptDataError(f"{place}: file_name {file!r} is no name of a file")
    if file and not (folder / file).is_file():
        raise MissingDataError(
            f"{folder / file} is missing, which GAIA's task {name} is about; put it beside the metadata"
        )
    return GaiaQuestion(
        id=name, text=text, answer=answer, level=level, split=split, path=folder / file if file else None
    )


RULES: Final = (
    "Answer with a number, as few words as possible, or a list of such, separated by commas. Write numbers without "
    "commas and, unless asked for, without units. Write words without articles and abbreviations."
)
_WEB_TOOLS: Final = ("search", "open", "find")
_FINAL: Final = re.compile(r"FINAL ANSWER:\s*(.+)", re.IGNORECASE)


class GAIAEnv(SearchTools, ReadFileTool, PythonTool, BashTool, SubmitAnswerTool, SandboxEnv):
    """Answer a question of GAIA. GAIA's leaderboard rules grade the answer.

    The workspace contains the file of the question, if it has one. The tools ``search``, ``open`` and ``find`` reach
    the web through a search engine; without one they are not offered. The sandbox itself has no network. The agent
    answers with ``submit``, or with a message with ``FINAL ANSWER:`` and no call. The outcome is 1.0 or 0.0.

    Args:
        data_dir: the folder ``2023`` of GAIA, with ``validation/metadata.jsonl`` (or ``.parquet``) and files beside it.
        level: only questions of this level, ``1`` to ``3``; by default all.
        engine, engine_url, cassette, cassette_mode, cassette_date: access to the web, as for ``agentgym/WebBrowse-v0``.
        max_turns: turns after which an episode is truncated.
        others: see :class:`~agentgym.envs.code.sandbox_env.SandboxEnv`.

    Raises:
        UsageError: there are no such questions, a file is missing, or the options for the web do not fit together.
        CorruptDataError: a metadata file has another format.
    """

    takes_words: ClassVar[bool] = True
    question = SinceReset[GaiaQuestion]()
    """Question of the current episode."""

    def __init__(
        self,
        *,
        data_dir: str | Path,
        level: str | int = "",
        engine: str = "",
        engine_url: str = "",
        cassette: str = "",
        cassette_mode: str = "auto",
        cassette_date: str = "",
        max_turns: int = 30,
        **others: Any,
    ) -> None:
        self._questions = {
            name: one for name, one in read_gaia(data_dir).items() if not level or one.level == str(level)
        }
        if not self._questions:
            raise UsageError(f"GAIA's files have no question of level {level!r}; levels are 1, 2 and 3")
        web = live_web(engine, engine_url, cassette, cassette_mode, cassette_date)
        self.is_live = web is not None and engine != "cassette"
        if web is None:
            self._tools = {name: one for name, one in self._tools.items() if name not in _WEB_TOOLS}
        else:
            self.retriever = web.retriever()
        self.budget = Budget(2_000, 4_000)
        super().__init__(max_turns=max_turns, **others)

    # ------------------------------------------------------------------------------------------------- an episode

    def assign(self, task: Task) -> Assignment:
        name = str(task.data.get("question"))
        if name not in self._questions:
            raise UsageError(f"GAIA's files have no question {name!r} of this level; take tasks from tasks(split)")
        self.question, self.reading, self._opened = self._questions[name], Reading(), None
        path = self.question.path
        about = f"\nThe file it is about is {path.name} in the workspace." if path is not None else ""
        return Assignment(text=f"{RULES}\n\nQuestion: {self.question.text}{about}")

    def start(self, task: Task) -> str:
        self._prepare(task)
        path = self.question.path
        self._take_sandbox(packed_bytes({} if path is None else {path.name: path.read_bytes()}))
        self._look()
        return self.assignment.text

    def respond(self, action: Message) -> str | Observation:
        return run_coroutine(self.arespond(action))

    async def arespond(self, action: Message) -> str | Observation:
        return await super().arespond(action) if action.calls else await self._in_thread(self._hear, action)

    def hand_in_answer(self, answer: str) -> str:
        """Take an answer from the tool ``submit``."""
        is_right = is_gaia_answer(answer, self.question.answer)
        self.close_work()
        self.finish(float(is_right))
        return "Right." if is_right else "Wrong."

    def grade(self, work: Files) -> Grade:
        raise AssertionError("an answer is graded, no files")

    @tool
    async def search(self, query: str, k: int = 5) -> str:
        """Search the web; returns titles, addresses and fitting parts of the best pages.

        Args:
            query: a few words that the page should hold.
            k: how many results, 1 to 20.
        """
        with boundary(EnvError, "search"):
            return await super().search(query, k)

    @tool
    async def open(self, doc_id: str, page: int = 1) -> str:
        """Open a page of the web as text, one part of it at a time.

        Args:
            doc_id: its address.
            page: which part, from 1.
        """
        with boundary(EnvError, "open"):
            return await super().open(doc_id, page)

    @tool
    async def find(self, text: str) -> str:
        """Find a text in what is open; upper and lower case are the same.

        Args:
            text: a word or phrase.
        """
        with boundary(EnvError, "find"):
            return await super().find(text)

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    @property
    def task_type(self) -> str:
        """Level of the question."""
        return f"level {self.question.level}"

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the questions of ``valid``. Those of ``test`` have no public answers and cannot be graded."""
        require_known("split of GAIA", split, FOLDERS)
        found = [
            Task(id=one.id, split=split, seed=0, data={"question": one.id, "answers": [one.answer]})
            for one in self._questions.values()
            if one.split == split
        ]
        if not found:
            raise UsageError(
                f"GAIA's {FOLDERS[split]} questions have no answers in these files; nothing can grade them"
            )
        return found

    def oracle(self) -> Message:
        """Submit the answer in GAIA's file."""
        call = ToolCall("submit", {"answer": self.question.answer}, "0")
        return Message("assistant", format_call(call, self.tools), (call,))

    def cheats(self) -> Mapping[str, Sequence[Message]]:
        """Return answers with many values or none."""
        answers = {"say nothing": "", "say many": ", ".join(map(str, range(100))), "say infinity": "inf"}
        return {name: [Message("assistant", f"FINAL ANSWER: {answer}")] for name, answer in answers.items()}

    def state_key(self) -> str:
        """Return a key of the question, the workspace, the open page, and the last output, since most calls leave no
        other trace.
        """
        said = [message.text for message in self.episode.last_observation]
        reading = [self.reading.found, self.reading.doc_id, self.reading.page]
        return canonical([self.question.id, super().state_key(), reading, said])

    def dump_state(self) -> Any:
        return super().dump_state(), self.reading

    def load_state(self, state: Any) -> None:
        inner, reading = state
        super().load_state(inner)
        self.reading = reading

    # --------------------------------------------------------------------------------------------------- private

    def _hear(self, action: Message) -> str:
        """Submit the answer in a message without a call, if there is one."""
        found = _FINAL.findall(action.text)
        if found:
            said = self.hand_in_answer(found[-1].strip())
        else:
            self.refuse()
            said = f"Call one of the tools: {', '.join(self._tools)}."
        self._end_turn()
        return said
