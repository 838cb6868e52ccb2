"""Self-hosted applications: how they start, their data, and the tasks in them.

An application is described by a TOML file, with its tasks; see ``apps/guestbook/app.toml`` for one with everything.
Commands, variables and tasks may name ``{python}`` (an interpreter), ``{here}`` (the file's folder), ``{data}`` (the
running copy's data) and ``{port}`` in braces.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from agentgym.errors import CorruptDataError, MissingDataError, UsageError, require_known, unknown_name

APPS = Path(__file__).parent / "apps"
"""Folders of the applications that come with agentgym, each with an ``app.toml``."""

Cell = str | int | float | None
Words = Annotated[tuple[str, ...], Field(min_length=1)]
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Source of values: a query of the application's database as it is at the start of an episode."""

    __pydantic_config__ = _STRICT

    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppCheck:
    """Condition that holds once the agent says that it is done: the rows of a query, or a function's result."""

    __pydantic_config__ = _STRICT

    sql: str = ""
    """A query of the application's database; the task's values are its parameters, as in ``:name``."""
    rows: tuple[tuple[Cell, ...], ...] = ()
    """Rows that it must return, in this order; cells are compared as text, with the task's values in braces."""
    function: str = ""
    """``file.py:name`` beside the description: ``name(database: Path, values) -> float``, the outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppTask:
    """A kind of task: a wording with values that a seed draws."""

    __pydantic_config__ = _STRICT

    id: str
    instruction: str
    url: str = "/"
    """The first page, a path."""
    values: Mapping[str, Annotated[tuple[Cell, ...], Field(min_length=1)] | Rows] = field(default_factory=dict)
    """Source of each value, by name: a list, or rows whose columns become ``name_column``."""
    check: AppCheck = AppCheck()
    answer: str | None = None
    """The right answer, if the task asks for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebApp:
    """A self-hosted application."""

    __pydantic_config__ = _STRICT

    name: str
    start: Words
    """The command that serves it on 127.0.0.1, in the foreground."""
    host: str
    """Host name for browsers, such as ``guests.localhost``."""
    database: str
    """Path of its SQLite file within the data."""
    tasks: Annotated[tuple[AppTask, ...], Field(min_length=1)]
    state: str = ""
    """A query whose rows are part of the state, for data that no page shows. It should return no times."""
    data: str = ""
    """Folder of its data at the start of every episode, beside the description. Give this or ``prepare``."""
    prepare: tuple[str, ...] = ()
    """Command that makes these data in ``{data}``; it runs once per machine."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its processes, in addition to ``PATH`` and a few others of this process."""
    health: str = "/"
    """A path that answers without an error once it serves."""
    restarts: bool = True
    """True if it must be restarted when its data change; False if it opens its files at each request."""
    start_s: float = 60.0
    prepare_s: float = 600.0
    oracle: str = ""
    """``file.py:name``: the gold policy, ``name(task id, values, page, database) -> ToolCall``."""
    install: str = ""
    """How to install its requirements, for the error message if it does not start."""
    here: Path = Path()
    """The description's folder."""

    def __post_init__(self) -> None:
        if bool(self.data) == bool(self.prepare):
            raise UsageError(f"application {self.name!r}: give either data, a folder, or prepare, a command")
        for task in self.tasks:
            check = task.check
            if bool(check.sql) and bool(check.function):
                raise UsageError(
                    f"task {task.id!r} of {self.name!r}: a check has sql with rows, or a function, not both"
                )
            if not (check.sql or check.function or task.answer is not None):
                raise UsageError(f"task {task.id!r} of {self.name!r} has neither a check nor an answer")

    def task(self, id: str) -> AppTask:
        """Return a kind of task.

        Raises:
            UnknownNameError: there is none of that id.
        """
        found = next((task for task in self.tasks if task.id == id), None)
        if found is None:
            raise unknown_name(f"task of {self.name}", id, [task.id for task in self.tasks])
        return found


def load_web_app(name: str | Path) -> WebApp:
    """Return the application of a TOML file, or one that comes with agentgym, by its name.

    Raises:
        CorruptDataError: the file does not describe an application; the message says where.
        UsageError: there is no such file or application.

    Example:
        >>> load_web_app("guestbook").host
        'guests.localhost'
    """
    path = Path(name)
    if path.suffix != ".toml":
        known = sorted(folder.parent.name for folder in APPS.glob("*/app.toml"))
        require_known("application (or path of a .toml file)", str(name), known)
        path = APPS / str(name) / "app.toml"
    if not path.is_file():
        raise MissingDataError(f"no file {str(path)!r}")
    try:
        given: dict[str, object] = tomllib.loads(path.read_text(encoding="utf-8"))
        return TypeAdapter(WebApp).validate_python({**given, "here": path.resolve().parent})
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise CorruptDataError(f"{path} does not describe an application: {error}") from error
