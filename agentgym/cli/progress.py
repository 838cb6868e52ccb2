"""Progress bars of commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from agentgym.progress import progress_bars


@contextmanager
def loading(console: Console, what: str) -> Iterator[None]:
    """Show on a terminal what a command is waiting for."""
    with console.status(what):
        yield


@contextmanager
def step_progress(console: Console, num_steps: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar of a run's steps; yield the function that counts a finished step."""
    with progress_bars(console, transient=True) as bars:
        task = bars.add_task("steps", total=num_steps)
        yield lambda: bars.advance(task)
