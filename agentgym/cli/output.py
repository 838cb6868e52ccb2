"""What commands write: people read a table, programs read one JSON value that is all of standard output."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from agentgym.canonical import strict_json

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else on standard output.")]


class Output:
    """Where a command's words go.

    Attributes:
        console: the result for people, on standard output; silent if that is to hold JSON alone.
        status: for progress and remarks; always standard error.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.console = Console(quiet=as_json, highlight=False)
        self.status = Console(stderr=True, highlight=False)
        self._value: Any = None

    def result(self, value: Any) -> None:
        """The command's result for programs; printed when the command ends."""
        self._value = value


def grid(*titles: str, whole: Collection[str] = ()) -> Table:
    """Return an empty table without lines: bold titles, and rows that are named by their first column.

    Args:
        whole: columns whose cells are never broken over lines.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        style = "bold cyan" if title == titles[0] else None
        table.add_column(title, overflow="fold", style=style, no_wrap=title in whole)
    return table


@contextlib.contextmanager
def output(as_json: bool) -> Iterator[Output]:
    """Everything printed inside goes to standard error if standard output is to hold JSON alone."""
    stdout = sys.stdout
    with contextlib.redirect_stdout(sys.stderr if as_json else stdout):
        out = Output(as_json)
        try:
            yield out
        finally:
            sys.stdout.flush()
    if as_json:
        print(strict_json(out._value), file=stdout, flush=True)
