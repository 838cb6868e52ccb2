"""The order in which a run takes its tasks: a function of the seed and the ordinal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentgym.errors import UsageError
from agentgym.types import Task


class TaskSchedule:
    """Every task once per epoch, in an order that depends on the seed and the epoch.

    Example:
        >>> from agentgym.env.tasks import SeededTasks
        >>> schedule = TaskSchedule(SeededTasks("train", 4), seed=0)
        >>> sorted(task.id for _, task in schedule.take(0, 4))
        ['train-0', 'train-1', 'train-2', 'train-3']
    """

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        if not tasks:
            raise UsageError("there are no tasks in this split")
        self._tasks, self._seed = tasks, seed
        self._epoch = -1

    def take(self, first_ordinal: int, count: int) -> list[tuple[int, Task]]:
        """Return ``count`` tasks from ``first_ordinal`` on, each with its ordinal."""
        return [(ordinal, self.task(ordinal)) for ordinal in range(first_ordinal, first_ordinal + count)]

    def task(self, ordinal: int) -> Task:
        """Return the task of an ordinal."""
        return self._tasks[self.index(ordinal)]

    def index(self, ordinal: int) -> int:
        """Return the index of an ordinal's task."""
        epoch, position = divmod(ordinal, len(self._tasks))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, epoch]).permutation(len(self._tasks))
        return int(self._order[position])
