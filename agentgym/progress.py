"""Progress bars for terminals of at least 80 columns. They print nothing if the console is not a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Column
from rich.text import Text

from agentgym.types import Trajectory
from agentgym.visible_text import visible

_GAP = "  "


class VisibleConsole(Console):
    """A console that shows control characters of texts instead of sending them to the terminal."""

    def render_str(self, text: str, **settings: Any) -> Text:
        """Convert a string to rich's text, which would drop some control characters and pass others on."""
        return super().render_str(visible(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render to segments, whose texts are made visible and whose styles are kept."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


class StatusConsole(VisibleConsole):
    """A console on standard error that raises ``BrokenPipeError`` when its reader has gone.

    A plain console raises ``SystemExit``, which no handler of errors sees: a run would stop without saving its last
    step, and without a line in its journal.
    """

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def on_broken_pipe(self) -> None:
        """Raise the error that rich is handling."""
        raise  # noqa: PLE0704


def progress_bars(console: Console, *, transient: bool = False) -> Progress:
    """Return progress bars with the columns name, bar, count, remaining time and facts.

    A task's facts are short texts in its field ``facts``, the most important one first. A narrow terminal shows fewer
    facts; it never cuts one short and never narrows the other columns.

    Args:
        transient: remove the bars when they are done.
    """
    return _Bars(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        _FactsColumn(table_column=Column(no_wrap=False)),  # the only column that shrinks on a narrow terminal
        console=console,
        transient=transient,
        disable=not console.is_terminal,
    )


class _Bars(Progress):
    def stop(self) -> None:
        """Do nothing if the bars are disabled: rich prints an empty line there before version 14.3."""
        if not self.disable:
            super().stop()


class SuccessCount:
    """A count of episodes that succeeded, that did not, and whose infrastructure failed."""

    def __init__(self) -> None:
        self._num_won = self._num_missed = self._num_failed = 0

    def add(self, trajectory: Trajectory) -> tuple[str, ...]:
        """Count an episode and return the facts for a bar."""
        if not trajectory.status.is_evidence:
            self._num_failed += 1
        elif trajectory.success:
            self._num_won += 1
        else:
            self._num_missed += 1
        success = f"success {self._num_won}/{self._num_won + self._num_missed}"
        return (success, f"{self._num_failed} failed") if self._num_failed else (success,)


@contextmanager
def episode_progress(console: Console, num_episodes: int) -> Iterator[Callable[[Trajectory], None]]:
    """Show a progress bar of episodes; yield the function that counts a finished episode."""
    count = SuccessCount()
    with progress_bars(console, transient=True) as bars:
        task = bars.add_task("episodes", total=num_episodes)
        yield lambda trajectory: bars.update(task, advance=1, facts=count.add(trajectory))


class _FactsColumn(ProgressColumn):
    def render(self, task: Task) -> _Facts:
        return _Facts(task.fields.get("facts", ()))


@dataclass(frozen=True, slots=True)
class _Facts:
    """A text of as many facts as fit into one line."""

    facts: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(_GAP.join(_fitting(self.facts, options.max_width)), no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        least = len(self.facts[0]) if self.facts else 0
        return Measurement(least, len(_GAP.join(self.facts)))


def _fitting(facts: Sequence[str], width: int) -> Iterator[str]:
    left = width
    for at, fact in enumerate(facts):
        left -= len(fact) + (len(_GAP) if at else 0)
        if left < 0 and at:
            return
        yield fact
