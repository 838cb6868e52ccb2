"""``agentgym/Tau2Retail-v0``: tau2-bench's retail tasks, from its own files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from agentgym.canonical import digest
from agentgym.envs.domains.database import Tables
from agentgym.envs.domains.env import DomainEnv
from agentgym.envs.domains.task import Case, DomainTask, GoldAction, task_of_record
from agentgym.envs.retail.env import random_calls
from agentgym.envs.retail.tools import RetailTools
from agentgym.errors import CorruptDataError, UsageError, require_known
from agentgym.types import Message, Task

DATA_VARIABLE = "AGENTGYM_TAU2_DATA"


class Tau2RetailTools(RetailTools):
    """The tools as tau2 has them, to the cent."""

    is_as_in_tau2 = True


class Tau2RetailEnv(DomainEnv):
    """tau2-bench's retail domain: its policy, database and tasks, graded as tau2 grades the database.

    A database is compared as in tau2; in place of the language model that judges ``nl_assertions``, the texts of
    ``communicate_info`` are looked for. The benchmark's user is a language model: give one by ``user``. The scripted
    user reads its scenario out and says yes to everything, which is for trying things out.

    Args:
        data_dir: folder with tau2's ``db.json``, ``tasks.json``, ``policy.md`` and ``split_tasks.json``; by default
            what the environment variable ``AGENTGYM_TAU2_DATA`` names.
        kwargs: those of :class:`~agentgym.envs.domains.env.DomainEnv`.

    Raises:
        UsageError: there is no such folder, or a file is missing.
        CorruptDataError: a file is not in the format.
    """

    toolkit_class = Tau2RetailTools

    def __init__(self, *, data_dir: str | Path | None = None, **kwargs: Any) -> None:
        folder = data_dir or os.environ.get(DATA_VARIABLE)
        if not folder:
            raise UsageError(
                f"data_dir is missing; set it, or {DATA_VARIABLE}, to data/tau2/domains/retail of a checkout of "
                "https://github.com/sierra-research/tau2-bench"
            )
        self._data = load_tau2(folder)
        super().__init__(**kwargs)

    def case_of(self, task: Task) -> Case:
        name = str(task.data.get("task"))
        if name not in self._data.tasks:
            raise UsageError(f"tau2's files have no task {name!r}; take tasks from tasks(split)")
        if task.data.get("content", self._data.contents[name]) != self._data.contents[name]:
            raise UsageError(f"task {name!r} was another when it was taken from tau2's files; check out that version")
        return Case(policy=self._data.policy, tables=self._data.tables, task=self._data.tasks[name])

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of one of tau2's splits: ``train``, ``test``, or ``base``, which is both."""
        require_known("split of these files", split, self._data.splits)
        contents = self._data.contents
        return [
            Task(id=name, split=split, seed=0, data={"task": name, "content": contents[name]})
            for name in self._data.splits[split]
        ]

    def random_calls(self) -> Iterable[GoldAction]:
        """Calls about the user, as far as the gold actions tell who that is."""
        owner = next(filter(None, map(self.toolkit.owner_of, self.case.task.actions)), None)
        return () if owner is None else random_calls(self.toolkit.db, owner)

    def oracle(self) -> Message:
        """The gold actions; the user is identified first, which the gold of 46 of the 114 tasks leaves out."""
        made = self.conversation.made
        left = [action for place, action in enumerate(self.case.task.actions) if place not in made]
        owner = next(filter(None, map(self.toolkit.owner_of, left)), None)
        is_in_gold = any(action.name in self.toolkit.identifies for action in left)
        if self.conversation.who or owner is None or is_in_gold:
            return super().oracle()
        email = self.toolkit.need("users", owner, "user")["email"]
        return self.message_of(GoldAction("find_user_id_by_email", {"email": email}))


# -------------- reads a folder in tau2-bench's format: ``db.json``, ``tasks.json``, ``policy.md``, ``split_tasks.json``

TABLES: Final = ("products", "users", "orders")
_FILES: Final = ("db.json", "tasks.json", "policy.md")
_AMOUNTS: Final = frozenset({"price", "balance", "amount"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tau2Data:
    """A retail domain of tau2's; environments of a process share it."""

    policy: str
    tables: Tables
    tasks: Mapping[str, DomainTask]
    contents: Mapping[str, str]
    """Digests of what is in the file about each task: tau2's tasks are mended now and then."""
    splits: Mapping[str, Sequence[str]]
    """Ids of tasks by split; without ``split_tasks.json``, all of them are for testing."""


def load_tau2(folder: str | Path) -> Tau2Data:
    """Read a folder such as ``data/tau2/domains/retail`` of a checkout of sierra-research/tau2-bench.

    Raises:
        UsageError: a file is missing.
        CorruptDataError: a file is not in the format.
    """
    return _load(Path(folder).expanduser().resolve())


@lru_cache(maxsize=4)
def _load(folder: Path) -> Tau2Data:
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise UsageError(
            f"{folder} has no {', '.join(missing)}; data_dir is a folder such as data/tau2/domains/retail of a "
            "checkout of https://github.com/sierra-research/tau2-bench"
        )
    database = _read(folder / "db.json")
    absent = [name for name in TABLES if not isinstance(database, dict) or not isinstance(database.get(name), dict)]
    if absent:
        raise CorruptDataError(f"{folder / 'db.json'} has no table {', '.join(absent)}; only retail databases are read")
    records = _read(folder / "tasks.json")
    try:
        tasks = {task.id: task for task in map(task_of_record, records)}
    except CorruptDataError as error:
        raise CorruptDataError(f"{folder / 'tasks.json'}: {error}") from error
    splits: dict[str, list[str]] = {"test": list(tasks)}
    if (folder / "split_tasks.json").is_file():
        splits = _read(folder / "split_tasks.json")
    unknown = sorted({name for names in splits.values() for name in names} - set(tasks))
    if unknown:
        raise CorruptDataError(f"{folder / 'split_tasks.json'} names tasks that are not there: {', '.join(unknown)}")
    return Tau2Data(
        policy=(folder / "policy.md").read_text(encoding="utf-8").strip(),
        tables={name: _with_amounts(database[name]) for name in TABLES},
        tasks=tasks,
        contents={str(record["id"]): digest(record) for record in records},
        splits=splits,
    )


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptDataError(f"{path} is not JSON: {error}") from error


def _with_amounts(value: object, name: str = "") -> Any:
    """Whole amounts of money as floats, so that adding and taking away again leads back to the same text."""
    if isinstance(value, dict):
        return {key: _with_amounts(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_amounts(item) for item in value]
    return float(value) if name in _AMOUNTS and isinstance(value, int) else value
