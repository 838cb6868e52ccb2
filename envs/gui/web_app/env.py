"""``agentgym/WebApp-v0``: tasks in a self-hosted web application, graded by its database."""

from __future__ import annotations

import asyncio
import os
import runpy
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from agentgym.call_syntax import format_call
from agentgym.env.tasks import SeededTasks
from agentgym.envs.gui.gui_env import GuiEnv
from agentgym.envs.gui.site import Sites, Upstream
from agentgym.envs.gui.web_app.process import AppProcess
from agentgym.envs.gui.web_app.spec import AppTask, Cell, Rows, WebApp, load_web_app
from agentgym.errors import CorruptDataError, EnvError, MissingDataError, UsageError, error_text
from agentgym.types import Message, Observation, Task, ToolCall

PYTHON = "AGENTGYM_WEBAPP_PYTHON"
"""Environment variable with the interpreter for applications, if it is not this process's."""


class WebAppEnv(GuiEnv):
    """Do a task in a real web application that runs on this machine, and say ``done``.

    Every environment has a copy of the application for itself: a process on a free port, with data that are copied
    back before each episode. It ends with the environment, or with the process that made it.

    Args:
        app: an application that comes with agentgym (``guestbook``, ``oscar``), the path of a TOML file that
            describes one, or a :class:`~agentgym.envs.gui.web_app.spec.WebApp`.
        kinds: ids of the tasks to use; by default all.
        python: the interpreter that runs it, if it is written in Python; ``$AGENTGYM_WEBAPP_PYTHON`` or this one by
            default. Applications with old pins need a separate environment.
        max_turns: turns after which an episode is truncated.
        options: those of :class:`~agentgym.envs.gui.gui_env.GuiEnv`.

    Raises:
        CorruptDataError: the file does not describe an application.
        UsageError: there is no such application, or none of its tasks has such an id.
    """

    is_live = False

    def __init__(
        self,
        *,
        app: str | Path | WebApp = "guestbook",
        kinds: Sequence[str] = (),
        python: str | None = None,
        max_turns: int = 30,
        **options: Any,
    ) -> None:
        self.app = app if isinstance(app, WebApp) else load_web_app(app)
        self._kinds = tuple(self.app.task(kind).id for kind in kinds) or tuple(task.id for task in self.app.tasks)
        self._python = python or os.environ.get(PYTHON) or sys.executable
        self._copy: AppProcess | None = None
        super().__init__(max_turns=max_turns, **options)

    def tasks(self, split: str) -> Sequence[Task]:
        """1,000,000 to train on, 1,000 to validate, 1,000 to test; the kinds in turn."""
        size = 1_000_000 if split == "train" else 1_000
        return SeededTasks(split, size, lambda seed: {"kind": self._kinds[seed % len(self._kinds)]})

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> Observation:
        self.end_episode()  # so that no request of the last episode changes the new data
        self._begin_app()
        return super().start(task)

    async def astart(self, task: Task) -> Observation:
        await self.aend_episode()
        await asyncio.to_thread(self._begin_app)
        return await super().astart(task)

    def _begin_app(self) -> None:
        if self._copy is None:
            self._copy = AppProcess(self.app, self._python)
        self._copy.begin()

    def sites(self, task: Task) -> Sites:
        self._kind = self.app.task(str(task.data.get("kind")))
        self._values = draw_values(self._kind, self.copy.database, self.np_random)
        return {self.app.host: Upstream("127.0.0.1", self.copy.port)}

    def start_url(self, task: Task) -> str:
        return f"http://{self.app.host}{worded(self._kind.url, self._values)}"

    async def set_up(self, task: Task) -> str:
        self.copy.check_alive()
        return worded(self._kind.instruction, self._values)

    def _require_sites(self) -> None:
        if self.session.network.failure is not None:
            self.copy.check_alive()  # its own end says more than the connection that it lost
        super()._require_sites()

    async def score(self) -> float | None:
        self.copy.check_alive()
        if self.answer is None:
            return None
        return await asyncio.to_thread(grade, self.app, self._kind, self._values, self.copy.database, self.answer)

    def hidden_state(self) -> object:
        """Return the values, and the rows that the description names, since others may hold times."""
        return [sorted(self._values.items()), state_rows(self.app, self._kind, self._values, self.copy.database)]

    def stop(self) -> None:
        super().stop()
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    @property
    def copy(self) -> AppProcess:
        """This environment's copy of the application."""
        if self._copy is None:
            raise UsageError(f"{self.env_id}: the application runs only after reset()")
        return self._copy

    @property
    def values(self) -> Values:
        """Values that the seed has drawn for the task, by name."""
        return dict(self._values)

    def oracle(self) -> Message:
        if not self.app.oracle:
            raise NotImplementedError(f"the application {self.app.name!r} describes no gold policy")
        choose = function_of(self.app, self.app.oracle)
        call: ToolCall = choose(self._kind.id, self._values, self.page, self.copy.database)
        return Message("assistant", format_call(call, self.tools), (call,))


# -------------------- the values of a task, drawn by a seed, and the check of its result in the application's database


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
            raise EnvError(f"check {check.function} of task {task.id!r} failed: {error_text(error)}") from error
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
        raise MissingDataError(f"application {app.name!r}: no file {str(path)!r}")
    found = _names_of(path, path.stat().st_mtime_ns).get(name)
    if not callable(found):
        raise UsageError(f"application {app.name!r}: no function {name!r} in {str(path)!r}")
    return cast(Callable[..., object], found)


@lru_cache(maxsize=64)
def _names_of(path: Path, stamp: int) -> dict[str, object]:
    return runpy.run_path(str(path))
