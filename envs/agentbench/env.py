"""``agentgym/AgentBenchDB-v0``: AgentBench's database tasks, on SQLite."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from agentgym.call_syntax import format_call
from agentgym.canonical import canonical, digest
from agentgym.env.tool_env import ToolEnv
from agentgym.envs.agentbench.questions import (
    FILES,
    DatabaseQuestion,
    filled,
    is_right_answer,
    quoted,
    read_database_tasks,
    tables_hash,
)
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import MissingDataError, ResetNeededError, ToolError, UsageError, require_known
from agentgym.tool import tool
from agentgym.types import Message, Task, ToolCall

DATA_VARIABLE: Final = "AGENTBENCH_DATA"
INSTRUCTION: Final = (
    "Answer the question by SQL on an SQLite database. All columns are text: compare numbers by CAST. One statement a "
    "call. When you are done, commit the answer exactly as the database has it; after a change it may be anything."
)
_MOST_CHARS: Final = 800
_MOST_STEPS: Final = 20_000_000
"""Most virtual-machine instructions of SQLite for one statement."""
_STEPS_A_CHECK: Final = 10_000
_UNLIMITED: Final = 1 << 40  # limit for the environment's own statements
_MOST_BYTES: Final = 1_000_000
"""Most bytes of a value and of a statement."""
_REFUSED: Final = frozenset(
    getattr(sqlite3, name) for name in ("SQLITE_ATTACH", "SQLITE_DETACH", "SQLITE_PRAGMA", "SQLITE_CREATE_VTABLE")
)


class AgentBenchDBEnv(ToolEnv):
    """Answer questions about a table, or change it, with SQL.

    The outcome is 1.0 or 0.0. AgentBench's rule grades answers to questions; the hash of the table grades changes.
    AgentBench runs MySQL, this environment SQLite, so statements use SQLite's dialect. Changes whose reference
    statement gives another table in SQLite are left out (:attr:`left_out`).

    Args:
        data_dir: AgentBench's ``data/dbbench``, with ``standard.jsonl`` (split test) and ``dev.jsonl`` (valid); by
            default ``dbbench`` in the folder ``$AGENTBENCH_DATA``.
        max_turns: turns after which an episode is truncated; AgentBench's limit is 15.

    Raises:
        UsageError: there is no such folder or file.
        CorruptDataError: a row has another format.
    """

    question = SinceReset[DatabaseQuestion]()
    """Task of the current episode."""

    def __init__(
        self, *, data_dir: str | Path | None = None, max_turns: int = 15, render_mode: str | None = None
    ) -> None:
        folder = data_dir or (Path(os.environ[DATA_VARIABLE], "dbbench") if os.environ.get(DATA_VARIABLE) else None)
        if folder is None:
            raise MissingDataError(
                f"data_dir is missing; set it to data/dbbench of a checkout of https://github.com/THUDM/AgentBench, or "
                f"{DATA_VARIABLE} to its data"
            )
        self._tasks = read_database_tasks(folder)
        self._database: sqlite3.Connection | None = None
        self._steps_left = 0
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Ids of the changes that SQLite cannot grade."""
        return self._tasks.left_out

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> str:
        self._open(task)
        return f"{INSTRUCTION}\n\n{self.question.text}"

    @tool
    def execute_sql(self, query: str) -> str:
        """Run one SQL statement and see its rows.

        Args:
            query: The statement.
        """
        database = self._running()
        self._steps_left = _MOST_STEPS // _STEPS_A_CHECK
        try:
            rows = database.execute(query).fetchmany(_MOST_CHARS)  # each value has at least one character
        except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
            said = str(error)
            raise ToolError("the statement took too long" if said == "interrupted" else said, "sql_error") from None
        shown = str(rows)
        return shown if len(shown) <= _MOST_CHARS else f"{shown[:_MOST_CHARS]}[TRUNCATED]"

    @tool
    def commit_final_answer(self, answers: list[str]) -> str:
        """Commit the final answer; this ends the task.

        Args:
            answers: All values of the answer.
        """
        question = self.question
        if question.is_change:
            is_right = tables_hash(self._running(), question.tables) == question.md5
        else:
            is_right = is_right_answer(answers, question.labels)
        self.finish(float(is_right))
        return "Right." if is_right else "Wrong."

    def stop(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    @property
    def task_type(self) -> str:
        """``INSERT``, ``UPDATE``, or the kind of question."""
        return self.question.kind

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of ``standard.jsonl`` (``test``) or ``dev.jsonl`` (``valid``)."""
        require_known("split of AgentBench", split, FILES)
        found = [one for one in self._tasks.questions.values() if one.split == split]
        if not found:
            raise UsageError(f"AgentBench's folder has no {FILES[split]}, which the split {split} is read from")
        return [
            Task(id=one.id, split=split, seed=0, data={"question": one.id, "digest": self._digest(one)})
            for one in found
        ]

    def oracle(self) -> Message:
        """Return the reference statement of a change, then the reference answer."""
        question = self.question
        if question.is_change and tables_hash(self._running(), question.tables) != question.md5:
            call = ToolCall("execute_sql", {"query": question.labels[0]}, "0")
        else:
            answers = ["done"] if question.is_change else list(question.labels)
            call = ToolCall("commit_final_answer", {"answers": answers}, "0")
        return Message("assistant", format_call(call, self.tools), (call,))

    def admissible_actions(self) -> tuple[str, ...]:
        """Return queries of the tables and answers from their first rows, for a random policy."""
        calls = [ToolCall("commit_final_answer", {"answers": ["0"]})]
        for table in self.question.tables:
            calls.append(ToolCall("execute_sql", {"query": f"SELECT COUNT(*) FROM {quoted(table.name)}"}))
            calls.append(ToolCall("execute_sql", {"query": f"DELETE FROM {quoted(table.name)}"}))
            calls += [ToolCall("commit_final_answer", {"answers": [value]}) for row in table.rows[:2] for value in row]
        return tuple(format_call(call, self.tools) for call in calls)

    def cheats(self) -> Mapping[str, Sequence[Message]]:
        """Return statements that reach beyond the tables, and answers without a query."""
        tricks = {
            "attach a file": ToolCall(
                "execute_sql", {"query": "ATTACH DATABASE '/tmp/agentgym-cheat.db' AS other"}, "0"
            ),
            "load code": ToolCall("execute_sql", {"query": "SELECT load_extension('/tmp/cheat.so')"}, "0"),
            "commit nothing": ToolCall("commit_final_answer", {"answers": []}, "0"),
            "commit names": ToolCall("commit_final_answer", {"answers": ["`label`"]}, "0"),
        }
        return {name: [Message("assistant", format_call(call, self.tools), (call,))] for name, call in tricks.items()}

    def state_key(self) -> str:
        """Return a key of the task, the database as SQL, and the last output."""
        said = [message.text for message in self.episode.last_observation]
        return canonical([self.question.id, digest(self._contents()), said])

    def dump_state(self) -> bytes:
        database = self._running()
        with _unguarded(database):
            return database.serialize()

    def load_state(self, state: bytes) -> None:
        self._open(self.task)
        database = self._running()
        with _unguarded(database):
            database.deserialize(state)

    # --------------------------------------------------------------------------------------------------- private

    def _open(self, task: Task) -> None:
        name = str(task.data.get("question"))
        if name not in self._tasks.questions:
            why = "is a change that SQLite cannot grade" if name in self.left_out else "is none of AgentBench's files"
            raise UsageError(f"task {name!r} {why}; take tasks from tasks(split)")
        question = self._tasks.questions[name]
        if task.data.get("digest", self._digest(question)) != self._digest(question):
            raise UsageError(f"task {name!r} was another when it was made; use that version of AgentBench's files")
        self.question = question
        self.stop()
        # without an isolation level, every statement is committed at once, as in AgentBench
        made = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._database = filled(made, question.tables)
        for limit in (sqlite3.SQLITE_LIMIT_LENGTH, sqlite3.SQLITE_LIMIT_SQL_LENGTH):
            self._database.setlimit(limit, _MOST_BYTES)
        self._database.set_authorizer(_authorize)
        self._database.set_progress_handler(self._tick, _STEPS_A_CHECK)

    def _contents(self) -> list[object]:
        """Return all objects that statements can have created, as text."""
        database = self._running()
        made = database.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
        tables = [name for kind, name, _ in made if kind == "table"]
        rows = [database.execute(f"SELECT * FROM {quoted(name)}").fetchall() for name in tables]
        return [[list(map(str, one)) for one in made], [[repr(row) for row in table] for table in rows]]

    def _tick(self) -> int:
        """Count SQLite's steps. A result other than 0 ends the statement."""
        self._steps_left -= 1
        return int(self._steps_left < 0)

    def _running(self) -> sqlite3.Connection:
        if self._database is None:
            raise ResetNeededError(f"{self.env_id}: no database before reset()")
        self._steps_left = _UNLIMITED
        return self._database

    @staticmethod
    def _digest(question: DatabaseQuestion) -> str:
        return digest([question.text, question.labels, question.md5, [list(table.rows) for table in question.tables]])


@contextlib.contextmanager
def _unguarded(database: sqlite3.Connection) -> Iterator[None]:
    """Allow pragmas and attached databases during the ``with`` block, which SQLite's own copying needs."""
    database.set_authorizer(None)
    try:
        yield
    finally:
        database.set_authorizer(_authorize)


def _authorize(action: int, *_: Any) -> int:
    return sqlite3.SQLITE_DENY if action in _REFUSED else sqlite3.SQLITE_OK
