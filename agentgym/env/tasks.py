"""Task lists without data files: tasks that differ only in their seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, overload

from agentgym.errors import UsageError, require_known
from agentgym.types import Task

SPLITS = ("train", "valid", "test")


def require_tasks(tasks_of: Callable[[str], Sequence[Task]], split: str, whose: str) -> Sequence[Task]:
    """Return the tasks of a split.

    Raises:
        UsageError: there are none. The error says how many the other splits have.
    """
    tasks = tasks_of(split)
    if len(tasks):
        return tasks
    others: list[str] = []
    for name in SPLITS:
        with suppress(UsageError):  # an environment may lack a split
            others += [f"{name}: {count:,}"] if (count := len(tasks_of(name))) else []
    raise UsageError(f"{whose} has no tasks in split {split!r}; it has {', '.join(others) or 'none in any other'}")


class LazyTasks(Sequence[Task]):
    """Tasks that are made when they are read; subclasses implement :meth:`task_at` and ``__len__``."""

    def task_at(self, index: int) -> Task:
        """Return the task of an index from 0 to ``len(self) - 1``."""
        raise NotImplementedError(f"{type(self).__name__} must implement task_at(index)")

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.task_at(index)


class SeededTasks(LazyTasks):
    """Tasks that differ only in their seed. The seeds of the splits are disjoint.

    Args:
        split: train, valid or test.
        num_tasks: number of tasks.
        data: data of all tasks, such as a difficulty, or a function that returns a task's data for its seed.

    Example:
        >>> SeededTasks("test", 100)[3].id
        'test-3'
        >>> SeededTasks("train", 100, {"num_rooms": 2})[7].data
        {'num_rooms': 2}
        >>> SeededTasks("train", 100, lambda seed: {"answer": 2 * seed})[7].data
        {'answer': 14}
    """

    _FIRST_SEED: ClassVar[Mapping[str, int]] = {"train": 0, "valid": 1_000_000_000, "test": 2_000_000_000}

    def __init__(
        self,
        split: str,
        num_tasks: int,
        data: Mapping[str, object] | Callable[[int], Mapping[str, object]] | None = None,
    ) -> None:
        require_known("split", split, self._FIRST_SEED)
        self._split, self._num_tasks = split, num_tasks
        self._data = data if callable(data) else dict(data or {})

    def __len__(self) -> int:
        return self._num_tasks

    def task_at(self, index: int) -> Task:
        seed = self._FIRST_SEED[self._split] + index
        data = self._data(seed) if callable(self._data) else self._data
        return Task(id=f"{self._split}-{index}", split=self._split, seed=seed, data=data)
