"""Reads a folder in tau2-bench's format: ``db.json``, ``tasks.json``, ``policy.md``, ``split_tasks.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from agentgym.canonical import digest
from agentgym.envs.domains.database import Tables
from agentgym.envs.domains.task import DomainTask, task_of_record
from agentgym.errors import CorruptDataError, UsageError

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


def _with_amounts(value: Any, name: str = "") -> Any:
    """Whole amounts of money as floats, so that adding and taking away again leads back to the same text."""
    if isinstance(value, dict):
        return {key: _with_amounts(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_amounts(item) for item in value]
    return float(value) if name in _AMOUNTS and isinstance(value, int) else value
