"""Output of commands: text for people, or a single JSON value on standard output for programs."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
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
    """The output streams of a command.

    Attributes:
        console: the result as text, on standard output; silent with ``--json``.
        status: progress and remarks, always on standard error.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.console = Console(quiet=as_json, highlight=False)
        self.status = Console(stderr=True, highlight=False)
        self._value: object = None

    def result(self, value: object) -> None:
        """Set the command's JSON value, which is printed when the command ends."""
        self._value = value

    def announce(self, value: Mapping[str, object], text: str, *, markup: bool = True) -> None:
        """Print at once what programs may wait for, such as an address: a value as JSON, or else a text."""
        if self.as_json:
            print(json.dumps(value), flush=True)
        self.console.print(text, soft_wrap=True, markup=markup)

    def note(self, text: str) -> None:
        """Print a remark on standard error, without markup."""
        self.status.print(text, markup=False, soft_wrap=True)

    def page(self, *parts: RenderableType) -> None:
        """Print output that may be longer than a screen, through the user's pager if standard output is a terminal.

        Lines of a :class:`~rich.text.Text` are never wrapped, since they may hold commands to copy.
        """
        os.environ.setdefault("LESS", "FRX")  # as git does: keep colours, and do not page output that fits the screen
        is_read_by_people = self.console.is_terminal and sys.stdin.isatty() and not self.console.quiet
        with self.console.pager(styles=True) if is_read_by_people else contextlib.nullcontext():
            for part in parts:
                self.console.print(part, soft_wrap=isinstance(part, Text))


@contextlib.contextmanager
def output(as_json: bool) -> Iterator[Output]:
    """Yield the output of a command, and print its JSON value at the end if ``as_json``.

    With ``as_json``, everything else printed inside the block goes to standard error. If the command fails, the JSON
    value is an object with ``error`` and ``exit_code``.
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
    """Return the path of an HTML page after checking that it can be written.

    Raises:
        UsageError: the path is a folder, or its parent folder does not exist.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--out takes a file in an existing folder; got {path}")
    return path
