"""Progress bars, for people; nothing where the console is no terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentgym.types import Trajectory


@contextmanager
def episode_progress(console: Console, num_tasks: int) -> Iterator[Callable[[Trajectory], None]]:
    """Show a bar over episodes with the success rate so far; yield the function that counts a finished episode."""
    count: Counter[str] = Counter()
    with _bar(console, "episodes") as bar:
        task = bar.add_task("", total=num_tasks, so_far="")

        def add(trajectory: Trajectory) -> None:
            is_evidence = trajectory.status.is_evidence
            count[("won" if trajectory.success else "missed") if is_evidence else "failed"] += 1
            so_far = f"success {count['won']}/{count['won'] + count['missed']}"
            bar.update(task, advance=1, so_far=so_far + (f", {count['failed']} failed" if count["failed"] else ""))

        yield add


@contextmanager
def step_progress(console: Console, num_steps: int) -> Iterator[Callable[[], None]]:
    """Show a bar over a run's steps; yield the function that counts a finished step."""
    with _bar(console, "steps") as bar:
        task = bar.add_task("", total=num_steps, so_far="")
        yield lambda: bar.advance(task)


def _bar(console: Console, what: str) -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[so_far]}"), TimeRemainingColumn())
    return Progress(TextColumn(what), *columns, console=console, transient=True, disable=not console.is_terminal)
