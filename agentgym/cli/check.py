"""``agentgym check``: run the conformance checks on an environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from agentgym.cli.env_args import EnvArgument, KwargsArgument, parse_pairs
from agentgym.cli.exits import FAILED
from agentgym.cli.output import JsonFlag, Output, output
from agentgym.registry import find

if TYPE_CHECKING:
    from agentgym.check.report import CheckResult

_REDRAW_S, _NOTE_S = 0.2, 30.0


def check(
    env: EnvArgument,
    kwargs: KwargsArgument = None,
    *,
    episodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Episodes of each check; more find rarer faults. [default: 5, or 2 if slow or a service is asked]",
        ),
    ] = None,
    step_timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time limit of a reset or a step.")] = 60.0,
    as_json: JsonFlag = False,
) -> None:
    """Run the conformance checks on an environment; exit code 1 if one fails."""
    from agentgym.check import check_env
    from agentgym.check.conformance import CHECKS
    from agentgym.check.report import blocked

    with output(as_json) as out, _progress(out) as progress:
        find(env)  # an unknown name is a usage error, not a failed check
        show = partial(_show_row, out, max(len(known.name) for known in CHECKS))
        without_result: list[str] = []

        def on_result(result: CheckResult) -> None:
            progress.end()
            if result.is_blocked:
                without_result.append(result.name)
            else:
                show(result)

        report = check_env(
            env,
            num_episodes=episodes,
            step_timeout_s=step_timeout,
            on_result=on_result,
            on_turn=progress.on_turn,
            arguments=parse_pairs(kwargs or ()),
        )
        if without_result:
            detail = f"no result, since they depend on a check that failed: {', '.join(without_result)}"
            show(blocked(f"{len(without_result)} others", detail))
        out.result(asdict(report))
        out.console.print("[bold green]sound[/]" if report.passed else f"[bold red]{report.verdict}[/]")
    if not report.passed:
        raise typer.Exit(FAILED)


class _CheckProgress:
    """A line on a terminal about the running check; without a terminal, a note every half a minute.

    Nothing is drawn by a thread, which environments that fork would meet.
    """

    def __init__(self, out: Output, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._clock = out, clock
        self._live: Live | None = None
        self._began = self._shown = clock()

    def on_turn(self, name: str, num_turns: int) -> None:
        now = self._clock()
        is_drawn = self._out.status.is_terminal
        if now - self._shown < (_REDRAW_S if is_drawn else _NOTE_S):
            return
        self._shown = now
        text = f"{name}: {num_turns} turns, {now - self._began:.0f} s"
        if not is_drawn:
            self._out.note(text)
            return
        if self._live is None:
            self._live = Live(
                console=self._out.status,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(Text(text, style="dim"), refresh=True)

    def end(self) -> None:
        """Remove the line, so that the check's row takes its place."""
        if self._live is not None:
            self._live.stop()
        self._live, self._began, self._shown = None, self._clock(), self._clock()


@contextmanager
def _progress(out: Output) -> Iterator[_CheckProgress]:
    progress = _CheckProgress(out)
    try:
        yield progress
    finally:
        progress.end()


def _show_row(out: Output, width: int, result: CheckResult) -> None:
    """Print the row of a check as soon as the check is done, aligned with all other rows."""
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(width=1)
    row.add_column(width=width)
    row.add_column()
    if not result.passed:
        mark = "[bold red]✗[/]"
    elif result.is_blocked:
        mark = "–"
    else:
        mark = "[yellow]![/]" if result.detail.startswith("warning:") else "[green]✓[/]"
    row.add_row(mark, result.name, escape(result.detail), style=None if result.passed else "red")
    out.console.print(row)
