"""Output of commands: text for people, or a single JSON value on standard output for programs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, TextIO

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from agentgym.canonical import strict_json
from agentgym.cli.exits import ending
from agentgym.errors import UsageError
from agentgym.progress import VisibleConsole

_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else on standard output.")]


class Output:
    """The output streams of a command.

    Attributes:
        console: the result as text, on standard output; silent with ``--json``.
        status: progress and remarks, always on standard error.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._protocol = claim_stdout() if as_json else None
        self.console: Console = VisibleConsole(quiet=as_json, highlight=False)
        self.status: Console = VisibleConsole(stderr=True, highlight=False)
        self._value: object = None

    def result(self, value: object) -> None:
        """Set the command's JSON value, which is printed when the command ends."""
        self._value = value

    def announce(self, value: Mapping[str, object], text: str, *, markup: bool = True) -> None:
        """Print at once what programs may wait for, such as an address: a value as JSON, or else a text."""
        self.answer(value)
        self.console.print(text, soft_wrap=True, markup=markup)

    def answer(self, value: object) -> None:
        """Print a JSON value on standard output if the command was called with ``--json``."""
        if self._protocol is not None:
            print(strict_json(value), file=self._protocol, flush=True)

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

    With ``as_json``, everything else that this process and its children write to standard output goes to standard
    error. If the command fails, the JSON value is an object with ``error`` and ``exit_code``.
    """
    with contextlib.redirect_stdout(sys.stdout):  # puts back the stream that claim_stdout replaces
        out = Output(as_json)
        try:
            yield out
        except (Exception, KeyboardInterrupt) as error:
            if not isinstance(error, BrokenPipeError | typer.Exit):
                text, code = ending(error)
                out.answer({"error": text, "exit_code": code})
            raise
        finally:
            sys.stdout.flush()
    out.answer(out._value)


def claim_stdout() -> TextIO:
    """Take standard output for a protocol, and return it as a stream. From now on all else goes to standard error.

    The file descriptor is replaced, too, since ``os.write``, libraries in C and child processes write to its number.
    """
    stdout = sys.stdout
    stdout.flush()
    if _number_of(stdout) == _STDOUT:
        stdout = os.fdopen(os.dup(_STDOUT), "w", encoding="utf-8", errors="backslashreplace")
        os.dup2(_STDERR, _STDOUT)
    sys.stdout = sys.stderr
    return stdout


def claim_stdin() -> TextIO:
    """Take standard input for a protocol, and return it as a stream. All else finds an empty input."""
    stdin = sys.stdin
    if _number_of(stdin) == _STDIN:
        stdin = os.fdopen(os.dup(_STDIN), encoding="utf-8", errors="replace")
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, _STDIN)
        os.close(empty)
    return stdin


def _number_of(stream: TextIO) -> int:
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):  # a test's stream in memory
        return -1


def page_path(path: Path) -> Path:
    """Return the path of an HTML page after checking that it can be written.

    Raises:
        UsageError: the path is a folder, or its parent folder does not exist.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--out takes a file in an existing folder; got {path}")
    return path
