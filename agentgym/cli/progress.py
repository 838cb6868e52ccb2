"""Progress, for people."""

from __future__ import annotations

from contextlib import AbstractContextManager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentgym.types import Trajectory


class EpisodeProgress(AbstractContextManager["EpisodeProgress"]):
    """A bar with the success rate so far; nothing where the console is no terminal."""

    def __init__(self, console: Console, num_tasks: int) -> None:
        self._bar = Progress(
            TextColumn("episodes"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[so_far]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=num_tasks, so_far="")
        self._num_won = self._num_lost = self._num_failed = 0

    def __enter__(self) -> EpisodeProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def add(self, trajectory: Trajectory) -> None:
        """Count a finished episode."""
        if not trajectory.status.is_evidence:
            self._num_failed += 1
        elif trajectory.success:
            self._num_won += 1
        else:
            self._num_lost += 1
        rate = f"success {self._num_won}/{self._num_won + self._num_lost}"
        self._bar.update(self._task, advance=1, so_far=rate + (f", {self._num_failed} lost" * bool(self._num_failed)))


class StepProgress(AbstractContextManager["StepProgress"]):
    """A bar over a run's steps; nothing where the console is no terminal."""

    def __init__(self, console: Console, num_steps: int) -> None:
        columns = (TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=num_steps)

    def __enter__(self) -> StepProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self) -> None:
        """Count a finished step."""
        self._bar.advance(self._task)
