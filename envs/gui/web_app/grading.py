"""The values of a task, drawn by a seed, and the check of its result in the application's database."""

from __future__ import annotations

import runpy
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from agentgym.envs.gui.web_app.spec import AppTask, Cell, Rows, WebApp
from agentgym.errors import CorruptDataError, EnvError, UsageError

Values = Mapping[str, Cell]
_LOCKED_S = 10.0


def draw_values(task: AppTask, database: Path, rng: np.random.Generator) -> dict[str, Cell]:
    """Return a value for each name, by the generator and the database alone.

    Raises:
        CorruptDataError: a query gives no rows, or cannot be run.
    """
    values: dict[str, Cell] = {}
    for name, source in task.values.items():
        if isinstance(source, Rows):
            columns, rows = _query(database, source.sql, values)
            if not rows:
                raise CorruptDataError(f"task {task.id!r}: there are no rows to draw {name!r} from: {source.sql}")
            row = rows[int(rng.integers(len(rows)))]
            values |= {f"{name}_{column}": cell for column, cell in zip(columns, row, strict=True)}
        else:
            values[name] = source[int(rng.integers(len(source)))]
    return values


def worded(text: str, values: Values) -> str:
    """Return a text with values in place of their names.

    Raises:
        CorruptDataError: a name that has no value.

    Example:
        >>> worded("Sign as {name}.", {"name": "Ann"})
        'Sign as Ann.'
    """
    try:
        return text.format_map(values)
    except (KeyError, IndexError, ValueError) as error:
        raise CorruptDataError(f"{text!r}: no value for {error}; there are {', '.join(values) or 'none'}") from error


def grade(app: WebApp, task: AppTask, values: Values, database: Path, answer: str) -> float:
    """Grade the state of the database and the agent's answer, 0 to 1.

    Raises:
        EnvError: the check itself fails.
    """
    if task.answer is not None and _normal(answer) != _normal(worded(task.answer, values)):
        return 0.0
    check = task.check
    if check.function:
        try:
            return float(function_of(app, check.function)(database, values))
        except Exception as error:
            raise EnvError(
                f"check {check.function} of task {task.id!r} failed: {type(error).__name__}: {error}"
            ) from error
    if not check.sql:
        return 1.0
    wanted = [[worded(cell, values) if isinstance(cell, str) else cell for cell in row] for row in check.rows]
    return float(_as_text(_query(database, check.sql, values)[1]) == _as_text(wanted))


def state_rows(app: WebApp, task: AppTask, values: Values, database: Path) -> list[list[list[str]]]:
    """Return the rows of the application's query of its state and of the task's check, as text."""
    return [_as_text(_query(database, sql, values)[1]) for sql in (app.state, task.check.sql) if sql]


def _query(database: Path, sql: str, values: Values) -> tuple[list[str], list[tuple[Any, ...]]]:
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=_LOCKED_S)) as connection:
            found = connection.execute(sql, dict(values))
            return [column[0] for column in found.description], found.fetchall()
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "unable to open" in str(error):
            raise EnvError(f"the application's database {database} cannot be read: {error}") from error
        raise CorruptDataError(f"{error}: {sql}") from error
    except sqlite3.Error as error:
        raise CorruptDataError(f"{error}: {sql}") from error


def _as_text(rows: Any) -> list[list[str]]:
    return [["" if cell is None else str(cell) for cell in row] for row in rows]


def _normal(text: str) -> str:
    return " ".join(text.split()).casefold()


# ---------------------------------- functions that a description of an application names, as ``file.py:name`` beside it


def function_of(app: WebApp, reference: str) -> Callable[..., Any]:
    """Return the function.

    Raises:
        UsageError: there is no such file or function.
    """
    file, _, name = reference.partition(":")
    path = app.here / file
    if not path.is_file():
        raise UsageError(f"application {app.name!r}: no file {str(path)!r}")
    found = _names_of(path, path.stat().st_mtime_ns).get(name)
    if not callable(found):
        raise UsageError(f"application {app.name!r}: no function {name!r} in {str(path)!r}")
    return cast(Callable[..., object], found)


@lru_cache(maxsize=64)
def _names_of(path: Path, stamp: int) -> dict[str, object]:
    return runpy.run_path(str(path))
