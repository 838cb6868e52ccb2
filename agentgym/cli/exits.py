"""How every command ends: the one place where errors become a line on stderr and an exit code.

0 ok, 1 failed, 2 the user can put it right, 130 interrupted. ``AGENTGYM_DEBUG=1`` shows tracebacks.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import typer

from agentgym.errors import AgentGymError, UsageError, first_cause

FAILED, USAGE, INTERRUPTED = 1, 2, 130


class InterruptedCommandError(KeyboardInterrupt):
    """Ctrl-C, with what to run to go on."""


@contextmanager
def resumable_by(command: str) -> Iterator[None]:
    """Say ``command`` if what is inside is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedCommandError(f"to go on: {command}") from None


def interrupt_on_sigterm() -> None:
    """Let SIGTERM do what Ctrl-C does, for commands that serve until they are stopped."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Turn whatever a command raises into one line on stderr and an exit code."""
    try:
        yield
        sys.stdout.flush()  # a reader that went away shows here, not in the interpreter's last breath
    except (typer.Exit, typer.Abort):
        raise
    except BrokenPipeError:
        _silence_stdout()
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt as error:
        _say(f"interrupted; {error}" if str(error) else "interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if _is_from_the_command_line_parser(error):
            raise
        if os.environ.get("AGENTGYM_DEBUG") == "1":
            traceback.print_exc()
        first = first_cause(error)
        _say(f"error: {describe(first)}")
        raise typer.Exit(USAGE if isinstance(first, UsageError) else FAILED) from None


def describe(error: BaseException) -> str:
    """An error as one line."""
    if isinstance(error, AgentGymError):
        text = str(error) + (_place(error.__cause__) if error.__cause__ is not None else "")
    elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
        where = f" while writing {error.filename}" if error.filename else ""
        text = f"the disk is full{where}; free some space and run the command again"
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    else:
        text = f"{type(error).__name__}: {error}{_place(error)}; AGENTGYM_DEBUG=1 shows the traceback"
    return " ".join(text.split())


def _place(error: BaseException) -> str:
    """Where in the user's code or ours it happened, for errors that nobody raised on purpose."""
    if isinstance(error, OSError | AgentGymError):
        return ""
    if isinstance(error, SyntaxError):
        return ""  # its message names the place already
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _is_from_the_command_line_parser(error: Exception) -> bool:
    # Usage errors of the parser know how to show themselves and carry exit code 2.
    return hasattr(error, "exit_code") and hasattr(error, "format_message")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _silence_stdout() -> None:
    # Python flushes stdout once more at exit and would complain there.
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
