"""The end of every command: the only place where errors become a line on stderr and an exit code.

Exit codes: 0 success, 1 failure, 2 usage error, 130 interrupted. ``AGENTGYM_DEBUG=1`` shows tracebacks.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import typer

from agentgym.canonical import encodable
from agentgym.error_places import place_of
from agentgym.errors import (
    AgentGymError,
    CorruptDataError,
    EpisodesFailedError,
    RunHaltedError,
    RunStoppedError,
    UsageError,
    contained_exit,
    error_text,
    first_cause,
)
from agentgym.visible_text import visible

FAILED, USAGE, INTERRUPTED = 1, 2, 130


class InterruptedCommandError(KeyboardInterrupt):
    """An interrupt by Ctrl-C, with the command that resumes."""


@contextmanager
def resumable_by(command: str, folder: Path, *, after_stop: bool = False, is_it: bool = False) -> Iterator[None]:
    """Name ``command`` in the error if the block is interrupted after it made its folder, or halted from outside.

    A full disk halts it, another rank that ended, or failures of the infrastructure.

    Args:
        after_stop: name it also if the block stops itself and its error does not name the command.
        is_it: the block is that command, which would fail again for bad data or settings; it is not named for these.
    """
    try:
        yield
    except KeyboardInterrupt:
        if not (folder / "config.json").is_file():
            raise InterruptedCommandError("nothing was saved yet") from None
        raise InterruptedCommandError(f"to go on: {command}") from None
    except Exception as error:
        first = first_cause(error)
        is_kept = isinstance(first, RunStoppedError) and (folder / "config.json").is_file()
        if is_kept and isinstance(first, RunHaltedError):
            raise RunHaltedError(f"{first}; to go on: {command}") from None
        is_kept = is_kept and (after_stop or isinstance(first, EpisodesFailedError))
        if is_kept and command not in str(first):
            raise RunStoppedError(f"{first}; to run the failed episodes again: {command}") from None
        has_episodes = after_stop and (folder / "config.json").is_file()
        if is_it and isinstance(first, CorruptDataError) and str(folder) in str(first):
            raise CorruptDataError(f"{first}; restore it from a copy, or start again with another --run-dir") from None
        if has_episodes and not is_it and isinstance(first, UsageError) and "--resume" not in str(first):
            raise UsageError(f"{first}; what was played is kept: {command}") from None
        if not _is_full_disk(first):
            raise
        if not (folder / "config.json").is_file():
            raise RunStoppedError(f"{_full_disk(first)}; nothing was saved yet; free some space") from None
        raise RunStoppedError(
            f"{_full_disk(first)}; what was finished is whole; free some space, then: {command}"
        ) from None


def open_missing_streams() -> None:
    """Open ``/dev/null`` for each standard stream that the caller closed, as in ``<&-``.

    Python sets such a stream to None, and the next file that is opened would get its number: a library that writes to
    standard error by number would write into that file.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


_ENDING = (signal.SIGTERM, signal.SIGHUP)


def interrupt_on_ending_signals() -> None:
    """Handle the first SIGTERM or SIGHUP like Ctrl-C: free sandboxes and workers, and print how to resume.

    A scheduler's SIGTERM or a closed terminal would otherwise end the process at once. An ignored SIGHUP (``nohup``)
    stays ignored.
    """
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a background job of a script
        # Blocked, Ctrl-C has no effect, as if ignored. asyncio replaces only Python's own handler.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: object) -> None:
    for other in _ENDING:  # a second signal would interrupt the cleanup; SIGKILL still ends the process
        signal.signal(other, signal.SIG_IGN)
    signal.raise_signal(signal.SIGINT)  # in a running loop the handler of SIGINT is asyncio's own
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Turn any exception of a command into one line on stderr and an exit code."""
    try:
        with contained_exit(), _broken_pipe():
            yield
        sys.stdout.flush()  # raise a broken pipe here, not while the interpreter shuts down
    except (typer.Exit, typer.Abort):
        raise
    except BrokenPipeError:
        _silence(sys.stdout)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt as error:
        _say(ending(error)[0])
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if _is_from_the_command_line_parser(error):
            raise
        if os.environ.get("AGENTGYM_DEBUG") == "1":
            _say(traceback.format_exc())
        text, code = ending(error)
        _say(f"error: {text}")
        raise typer.Exit(code) from None


@contextmanager
def _broken_pipe() -> Iterator[None]:
    """Turn the ``SystemExit`` that rich raises when nobody reads on into the error behind it."""
    try:
        yield
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None
        raise


def ending(error: BaseException) -> tuple[str, int]:
    """Return the message of a command that ends with an error, on one line, and its exit code."""
    if isinstance(error, KeyboardInterrupt):
        return (f"interrupted; {error}" if str(error) else "interrupted"), INTERRUPTED
    first = first_cause(error)
    return describe(first), USAGE if isinstance(first, UsageError) else FAILED


def describe(error: BaseException) -> str:
    """Return an error as one line."""
    if isinstance(error, AgentGymError):
        is_fault = not isinstance(error, UsageError | RunHaltedError)  # else a line of agentgym's says nothing
        text = str(error) + place_of(error.__cause__, or_ours=is_fault)
    elif _is_full_disk(error):
        text = f"{_full_disk(error)}; free some space and run the command again"
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    else:
        text = f"{error_text(error)}{place_of(error)}; AGENTGYM_DEBUG=1 shows the traceback"
    return " ".join(text.split())


def _is_full_disk(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOSPC
    return f"(os error {errno.ENOSPC})" in str(error)  # as safetensors, which is written in Rust, says it


def _full_disk(error: BaseException) -> str:
    filename = getattr(error, "filename", None)
    return f"the disk is full while writing {filename}" if filename else "the disk is full"


def _is_from_the_command_line_parser(error: Exception) -> bool:
    # Usage errors of the parser print themselves and carry exit code 2.
    return hasattr(error, "exit_code") and hasattr(error, "format_message")


def _say(line: str) -> None:
    with suppress(OSError):  # after SIGHUP the terminal is gone
        print(visible(encodable(line)), file=sys.stderr, flush=True)


def silence_closed_pipes() -> None:
    """Discard what was printed for a reader that has gone, such as ``head``.

    Python flushes both streams at exit, and would end with exit code 120 instead of the command's.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            _silence(stream)
        except (OSError, ValueError):
            pass  # Python reports it at exit


def _silence(stream: TextIO) -> None:
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
