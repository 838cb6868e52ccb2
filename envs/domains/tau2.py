"""Base class of tau2-bench's domains (retail, airline, telecom), which are read from its own files."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from agentgym.canonical import digest
from agentgym.envs.domains.database import Tables
from agentgym.envs.domains.env import DomainEnv
from agentgym.envs.domains.task import Case, DomainTask, task_of_record
from agentgym.errors import CorruptDataError, MissingDataError, UsageError, require_known
from agentgym.types import Task

CHECKOUT = "a checkout of https://github.com/sierra-research/tau2-bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tau2Data:
    """The data of a tau2 domain, which the environments of a process share."""

    policy: str
    tables: Tables
    tasks: Mapping[str, DomainTask]
    contents: Mapping[str, str]
    """Digest of each task's entry, since tau2's tasks are corrected now and then."""
    splits: Mapping[str, Sequence[str]]
    """Ids of tasks by split; without ``split_tasks.json`` all tasks are in the split test."""


class Tau2Env(DomainEnv):
    """A domain of tau2-bench with tau2's grading.

    Args:
        data_dir: folder of the domain in tau2's data; by default the folder in the environment variable
            ``data_variable``, or this domain's folder inside it.
        kwargs: arguments of :class:`~agentgym.envs.domains.env.DomainEnv`.

    Raises:
        UsageError: there is no such folder, or a file is missing.
        CorruptDataError: a file has another format.
    """

    domain: ClassVar[str] = ""
    data_variable: ClassVar[str] = "AGENTGYM_TAU2_DOMAINS"
    """Environment variable that names tau2's folder ``data/tau2/domains``."""
    data_below: ClassVar[str] = ""
    """Folder of this domain inside it."""

    def __init__(self, *, data_dir: str | Path | None = None, **kwargs: Any) -> None:
        self._data = self.read(data_dir or self._given_folder())
        super().__init__(**kwargs)

    @abstractmethod
    def read(self, folder: str | Path) -> Tau2Data:
        """Read the data in the domain's folder."""

    def case_of(self, task: Task) -> Case:
        name = str(task.data.get("task"))
        if name not in self._data.tasks:
            raise UsageError(f"tau2's files have no task {name!r}; take tasks from tasks(split)")
        if task.data.get("content", self._data.contents[name]) != self._data.contents[name]:
            raise UsageError(f"task {name!r} was another when it was taken from tau2's files; check out that version")
        return Case(policy=self._data.policy, tables=self._data.tables, task=self._data.tasks[name])

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of one of tau2's splits: ``train``, ``test``, or ``base``, which is both."""
        require_known("split of these files", split, self._data.splits)
        contents = self._data.contents
        return [
            Task(id=name, split=split, seed=0, data={"task": name, "content": contents[name]})
            for name in self._data.splits[split]
        ]

    @classmethod
    def _given_folder(cls) -> Path:
        folder = os.environ.get(cls.data_variable)
        if not folder:
            above = "/".join(["data/tau2/domains", cls.domain][: 1 if cls.data_below else 2])
            raise MissingDataError(
                f"data_dir is missing; set it to data/tau2/domains/{cls.domain} of {CHECKOUT}, or {cls.data_variable} "
                f"to its {above}"
            )
        return Path(folder, cls.data_below)


def domain_folder(folder: str | Path, domain: str, needed: Sequence[str]) -> Path:
    """Return a domain's folder as an absolute path.

    Raises:
        UsageError: a file is missing.
    """
    path = Path(folder).expanduser().resolve()
    missing = [name for name in needed if not (path / name).is_file()]
    if missing:
        raise UsageError(
            f"{path} has no {', '.join(missing)}; data_dir is a folder such as data/tau2/domains/{domain} of {CHECKOUT}"
        )
    return path


@lru_cache(maxsize=8)
def read_domain(folder: Path, domain: str, tables: tuple[str, ...], prepare: Callable[[Any], Any]) -> Tau2Data:
    """Read a folder such as ``data/tau2/domains/retail`` of a checkout of sierra-research/tau2-bench.

    Args:
        folder: the folder, as an absolute path.
        domain: name of the domain in messages.
        tables: the tables of ``db.json`` that the domain has.
        prepare: converts a table.

    Raises:
        UsageError: a file is missing.
        CorruptDataError: a file has another format.
    """
    folder = domain_folder(folder, domain, ("db.json", "tasks.json", "policy.md"))
    database = read_json_file(folder / "db.json")
    absent = [name for name in tables if not isinstance(database, dict) or not isinstance(database.get(name), dict)]
    if absent:
        raise CorruptDataError(f"{folder / 'db.json'} has no table {', '.join(absent)}, which the {domain} domain has")
    return Tau2Data(
        policy=(folder / "policy.md").read_text(encoding="utf-8").strip(),
        tables={name: prepare(database[name]) for name in tables},
        **read_task_files(folder, task_of_record),
    )


def read_json_file(path: Path) -> Any:
    """Return the value in a JSON file.

    Raises:
        CorruptDataError: the file is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptDataError(f"{path} is not JSON: {error}") from error


def read_task_files(folder: Path, task_of: Callable[[Any], DomainTask]) -> dict[str, Any]:
    """Return the fields ``tasks``, ``contents`` and ``splits`` of :class:`Tau2Data`.

    Args:
        folder: a domain's folder, with ``tasks.json`` and optionally ``split_tasks.json``.
        task_of: parses a record.

    Raises:
        CorruptDataError: a file has another format.
    """
    records = read_json_file(folder / "tasks.json")
    try:
        tasks = {task.id: task for task in map(task_of, records)}
    except CorruptDataError as error:
        raise CorruptDataError(f"{folder / 'tasks.json'}: {error}") from error
    splits: dict[str, list[str]] = {"test": list(tasks)}
    if (folder / "split_tasks.json").is_file():
        splits = read_json_file(folder / "split_tasks.json")
    unknown = sorted({name for names in splits.values() for name in names} - set(tasks))
    if unknown:
        listed = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        raise CorruptDataError(f"{folder / 'split_tasks.json'} names tasks that are not there: {listed}")
    return {"tasks": tasks, "contents": {str(record["id"]): digest(record) for record in records}, "splits": splits}
