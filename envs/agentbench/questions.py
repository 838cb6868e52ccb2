"""AgentBench's database tasks and its rule for correct answers.

Source: "AgentBench: Evaluating LLMs as Agents"; ``src/server/tasks/dbbench`` of THUDM/AgentBench (Apache-2.0).

A row has ``description``, ``add_description``, ``table`` (name, columns, rows), ``type``, ``label`` and, where the task
changes the table, ``answer_md5``: MySQL's hash of the correct final table.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from agentgym.envs.rows import read_rows
from agentgym.errors import CorruptDataError, UsageError

FILES: Final = {"valid": "dev.jsonl", "test": "standard.jsonl"}
"""AgentBench's files by split."""
_CHANGES: Final = ("INSERT", "DELETE", "UPDATE")
_MD5: Final = re.compile(r"[0-9a-f]{32}")
_HASHED_CHARS: Final = 1024  # MySQL's group_concat_max_len
_NOTHING: Final = frozenset({"none", "null", "undefined", "nan", "inf", "infinity", "-inf", "-infinity", ""})
_TOLERANCE: Final = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of text values."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseQuestion:
    """A task."""

    id: str
    split: str
    kind: str
    """``INSERT``, ``UPDATE``, or what a question asks for, such as ``counting``."""
    text: str
    tables: tuple[Table, ...]
    labels: tuple[str, ...]
    """Correct answers; for a change, the reference statement."""
    md5: str = ""
    """Hash of the correct final table; empty for a question."""

    @property
    def is_change(self) -> bool:
        """True if the table is graded instead of the answer."""
        return self.kind in _CHANGES


@dataclass(frozen=True, slots=True)
class DatabaseTasks:
    """The tasks of a folder and those that SQLite cannot grade."""

    questions: Mapping[str, DatabaseQuestion]
    left_out: tuple[str, ...]


def read_database_tasks(folder: str | Path) -> DatabaseTasks:
    """Return the tasks of ``dev.jsonl`` and ``standard.jsonl``, if these files exist.

    A change is left out if its reference statement does not give the hashed table in SQLite.

    Raises:
        UsageError: both files are missing.
        CorruptDataError: a row has another format.
    """
    return _read(Path(folder).expanduser().resolve())


@lru_cache(maxsize=4)
def _read(folder: Path) -> DatabaseTasks:
    found: dict[str, DatabaseQuestion] = {}
    left_out: list[str] = []
    for split, name in FILES.items():
        if not (folder / name).is_file():
            continue
        for number, row in enumerate(read_rows(folder / name)):
            question = _question(row, f"{folder / name}, row {number}", f"{split}-{number}", split)
            if question.is_change and not _is_reproduced(question):
                left_out.append(question.id)
            else:
                found[question.id] = question
    if not found:
        raise UsageError(f"{folder} has no tasks; data_dir is AgentBench's data/dbbench, with standard.jsonl")
    return DatabaseTasks(found, tuple(left_out))


def _question(row: Mapping[str, Any], place: str, name: str, split: str) -> DatabaseQuestion:
    try:
        tables = row["table"] if isinstance(row["table"], list) else [row["table"]]
        parts = [("Evidence", row.get("evidence")), ("The table", row.get("add_description"))]
        told = [f"{what}: {text}" for what, text in parts if text]
        kind = str(row["type"][0])
        md5 = _MD5.findall(str(row["answer_md5"])) if kind in _CHANGES else [""]
        if len(md5) != 1:
            raise ValueError(f"answer_md5 holds no hash: {row['answer_md5']!r}")
        return DatabaseQuestion(
            id=name,
            split=split,
            kind=kind,
            text="\n".join([*told, f"Question: {row['description']}"]),
            tables=tuple(_table(one) for one in tables),
            labels=tuple(str(one) for one in row["label"]),
            md5=md5[0],
        )
    except (KeyError, TypeError, IndexError, ValueError) as error:
        said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise CorruptDataError(f"{place} is not in AgentBench's format: {said}") from error


def _table(given: Mapping[str, Any]) -> Table:
    info = given["table_info"]
    return Table(
        name=str(given["table_name"]),
        columns=tuple(str(one["name"]) for one in info["columns"]),
        rows=tuple(tuple(map(str, one)) for one in info["rows"]),
    )


# ------------------------------------------------------------------------------------------------------------ tables


def quoted(name: str) -> str:
    """Quote the name of a table or column for both SQLite and MySQL.

    Example:
        >>> quoted("To par")
        '`To par`'
    """
    return f"`{name.replace('`', '``')}`"


def filled(connection: sqlite3.Connection, tables: Iterable[Table]) -> sqlite3.Connection:
    """Create the tables. All columns are text, as in AgentBench, and ignore case in comparisons, as in MySQL."""
    for table in tables:
        columns = ", ".join(f"{quoted(one)} TEXT COLLATE NOCASE" for one in table.columns)
        connection.execute(f"CREATE TABLE {quoted(table.name)} ({columns})")
        places = ", ".join("?" * len(table.columns))
        connection.executemany(f"INSERT INTO {quoted(table.name)} VALUES ({places})", table.rows)
    connection.commit()
    return connection


def tables_hash(connection: sqlite3.Connection, tables: Sequence[Table]) -> str:
    """Return the hash that AgentBench computes of tables in MySQL; empty if a table is missing.

    It is MySQL's ``md5(group_concat(rowhash order by rowhash))``. A row's hash is the first five digits of the MD5 of
    its values joined by commas, without nulls.
    """
    return "_".join(sorted(_table_hash(connection, table) for table in tables))


def _table_hash(connection: sqlite3.Connection, table: Table) -> str:
    columns = ", ".join(map(quoted, table.columns))
    try:
        rows = connection.execute(f"SELECT {columns} FROM {quoted(table.name)}").fetchall()
    except sqlite3.Error:
        return ""
    hashes = sorted(_md5(",".join(str(value) for value in row if value is not None))[:5] for row in rows)
    return _md5(",".join(hashes)[:_HASHED_CHARS])


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(errors="replace"), usedforsecurity=False).hexdigest()


def _is_reproduced(question: DatabaseQuestion) -> bool:
    """Return True if a change's reference statement gives the hashed table."""
    connection = filled(sqlite3.connect(":memory:"), question.tables)
    try:
        connection.execute(question.labels[0])
        return tables_hash(connection, question.tables) == question.md5
    except (sqlite3.Error, IndexError):
        return False
    finally:
        connection.close()


# ----------------------------------------------------------------------------------------------------------- answers


def is_right_answer(given: Sequence[str], labels: Sequence[str]) -> bool:
    """Return True if AgentBench counts an answer to a question as correct.

    Percent signs, commas and outer quotes are removed; an empty text, ``none`` and the like count as 0. Numbers may
    differ by 0.01. Several values are compared as sets, or as numbers that are matched one to one.

    Example:
        >>> is_right_answer(["1,174"], ["1174.0"]), is_right_answer(["b", "a"], ["a", "b"])
        (True, True)
    """
    answer, wanted = [_cleaned(one) for one in given], [_cleaned(one) for one in labels]
    numbers = [_number(one) for one in answer], [_number(one) for one in wanted]
    if None in numbers[0] or None in numbers[1]:
        return answer == wanted if len(answer) == len(wanted) == 1 else set(answer) == set(wanted)
    left = [one for one in numbers[1] if one is not None]
    if len(answer) != len(left):
        return False
    for number in numbers[0]:
        partner = next((one for one in left if number is not None and abs(number - one) <= _TOLERANCE), None)
        if partner is None:
            return False
        left.remove(partner)
    return True


def _cleaned(text: str) -> str:
    bare = text.strip().strip("'\"").strip()
    if bare.endswith("%"):
        return bare[:-1].strip()
    if not bare.startswith("[") and not bare.endswith("]"):
        bare = bare.replace(",", "")
    return "0" if bare.lower() in _NOTHING else bare


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
