"""Progress bars of commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from agentgym.progress import SuccessCount, progress_bars
from agentgym.types import Trajectory


@contextmanager
def loading(console: Console, what: str) -> Iterator[None]:
    """Show on a terminal what a command waits for."""
    with console.status(what):
        yield


@contextmanager
def episode_progress(console: Console, num_tasks: int) -> Iterator[Callable[[Trajectory], None]]:
    """Show a bar over tasks; yield the function that counts a finished episode."""
    count = SuccessCount()
    with progress_bars(console, transient=True) as bars:
        task = bars.add_task("episodes", total=num_tasks)
        yield lambda trajectory: bars.update(task, advance=1, facts=count.add(trajectory))


@contextmanager
def step_progress(console: Console, num_steps: int) -> Iterator[Callable[[], None]]:
    """Show a bar over a run's steps; yield the function that counts a finished step."""
    with progress_bars(console, transient=True) as bars:
        task = bars.add_task("steps", total=num_steps)
        yield lambda: bars.advance(task)
