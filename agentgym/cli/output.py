"""The output of commands: a table for people, and for programs one JSON value that is all of standard output."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from agentgym.canonical import strict_json
from agentgym.cli.exits import ending
from agentgym.errors import UsageError

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else on standard output.")]


class Output:
    """The streams that a command writes to.

    Attributes:
        console: the result for people, on standard output; silent if that is to hold JSON alone.
        status: for progress and remarks; always standard error.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.console = Console(quiet=as_json, highlight=False)
        self.status = Console(stderr=True, highlight=False)
        self._value: object = None

    def result(self, value: object) -> None:
        """Keep the command's result for programs; it is printed when the command ends."""
        self._value = value

    def note(self, text: str) -> None:
        """Print a remark as it is, on standard error."""
        self.status.print(text, markup=False, soft_wrap=True)

    def page(self, *parts: RenderableType) -> None:
        """Print what may be longer than a screen: through the user's pager where a terminal reads it.

        Lines of a :class:`~rich.text.Text` are never broken, since they may hold what is to be typed.
        """
        os.environ.setdefault("LESS", "FRX")  # as git does: colours, and no paging of what fits the screen
        is_read_by_people = self.console.is_terminal and sys.stdin.isatty() and not self.console.quiet
        with self.console.pager(styles=True) if is_read_by_people else contextlib.nullcontext():
            for part in parts:
                self.console.print(part, soft_wrap=isinstance(part, Text))


@contextlib.contextmanager
def output(as_json: bool) -> Iterator[Output]:
    """Print everything inside to standard error if standard output is to hold JSON alone.

    The JSON value of a command that fails is an object with ``error`` and ``exit_code``.
    """
    stdout = sys.stdout
    with contextlib.redirect_stdout(sys.stderr if as_json else stdout):
        out = Output(as_json)
        try:
            yield out
        except (Exception, KeyboardInterrupt) as error:
            if as_json and not isinstance(error, BrokenPipeError | typer.Exit):
                text, code = ending(error)
                print(strict_json({"error": text, "exit_code": code}), file=stdout, flush=True)
            raise
        finally:
            sys.stdout.flush()
    if as_json:
        print(strict_json(out._value), file=stdout, flush=True)


def page_path(path: Path) -> Path:
    """Return the path of a page that can be written.

    Raises:
        UsageError: it is a folder, or its parent folder does not exist.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--out takes a file in a folder that exists; got {path}")
    return path
