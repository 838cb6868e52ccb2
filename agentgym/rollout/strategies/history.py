"""The history of tasks' results, which task sources and budgets read. Checkpoints store it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Visit:
    """The result of one group of a task."""

    step: int
    """Training step that used the group."""
    num_episodes: int
    """Number of valid episodes."""
    num_successes: int
    num_cut: int = 0
    """Episodes that the limit of turns ended although they were getting somewhere, where a horizon asks for them."""
    longest: int = 0
    """Turns of the longest success, where a horizon asks for them; 0 if there is none."""


class TaskHistory:
    """The visits of every task of an environment, oldest first, by index into the training tasks.

    Failed episodes do not count.

    Example:
        >>> history = TaskHistory()
        >>> history.add(7, Visit(step=0, num_episodes=8, num_successes=2))
        >>> history.rate(7), history.rate(3)
        (0.25, None)
    """

    def __init__(self, visits: Mapping[int, tuple[Visit, ...]] | None = None) -> None:
        self._visits = dict(visits or {})

    def add(self, task: int, visit: Visit) -> None:
        """Add a group of a task; a group without valid episodes is ignored."""
        if visit.num_episodes:
            self._visits[task] = (*self._visits.get(task, ()), visit)

    def visits(self, task: int) -> tuple[Visit, ...]:
        """Return the visits of a task; empty if there are none."""
        return self._visits.get(task, ())

    def rate(self, task: int) -> float | None:
        """Return the success rate of a task's last visit, or None if there is none."""
        visits = self.visits(task)
        return visits[-1].num_successes / visits[-1].num_episodes if visits else None

    def median_rate(self, first_step: int) -> float:
        """Return the median success rate of the visits from a step on, 0 if there are none.

        Example:
            >>> history = TaskHistory({0: (Visit(0, 4, 4), Visit(2, 4, 1)), 5: (Visit(3, 4, 3),)})
            >>> history.median_rate(1), history.median_rate(0), history.median_rate(4)
            (0.5, 0.75, 0.0)
        """
        rates = []
        for visits in self._visits.values():
            for visit in reversed(visits):
                if visit.step < first_step:
                    break
                rates.append(visit.num_successes / visit.num_episodes)
        return median(rates) if rates else 0.0

    def __iter__(self) -> Iterator[int]:
        return iter(self._visits)

    def __len__(self) -> int:
        return len(self._visits)

    def to_dict(self) -> dict[int, list[tuple[int, ...]]]:
        """Return plain values for a checkpoint."""
        return {task: [_plain(visit) for visit in visits] for task, visits in self._visits.items()}

    @classmethod
    def from_dict(cls, saved: Mapping[int, Sequence[tuple[int, ...]]]) -> TaskHistory:
        """Return the history that :meth:`to_dict` described."""
        return cls({int(task): tuple(Visit(*visit) for visit in visits) for task, visits in saved.items()})


def _plain(visit: Visit) -> tuple[int, ...]:
    known = (visit.step, visit.num_episodes, visit.num_successes)
    if visit.longest:
        return (*known, visit.num_cut, visit.longest)
    return (*known, visit.num_cut) if visit.num_cut else known
