"""Server processes that end together with the process that started them, through :mod:`agentgym.processes.guard`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from agentgym.processes import guard

KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")
"""Environment variables that a server process inherits."""
_ANY_MEMORY_MB = 1 << 30  # the guard's memory limit is meant for browser pages
_STOP_S = 10.0
_TOLD = 2000


def start_watched(
    command: Sequence[str],
    variables: Mapping[str, str],
    folder: Path,
    pass_fds: Sequence[int] = (),
    work_dir: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command with its output in ``log.txt`` of a folder, and return the process of its guard.

    The command inherits the file descriptors in ``pass_fds``. It works in ``work_dir``, by default in the folder.
    """
    owner = os.getpid()
    watch = [sys.executable, "-I", "-S", guard.__file__, str(owner), guard.start_ticks(owner), str(_ANY_MEMORY_MB)]
    with open(folder / "log.txt", "wb") as log:
        return subprocess.Popen(
            [*watch, *command],
            env=dict(variables),
            cwd=work_dir or folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=pass_fds,
            start_new_session=True,  # Ctrl-C must reach only the owner
        )


def end_of_log(folder: Path) -> str:
    """Return the last 2,000 characters of a process's output."""
    log = folder / "log.txt"
    return log.read_text(encoding="utf-8", errors="replace")[-_TOLD:].strip() if log.is_file() else ""


def interrupt_watched(process: subprocess.Popen[bytes]) -> None:
    """Ask the command of a guard to save its work and end by itself. It ignores SIGINT, as its guard does."""
    for pid in guard.below(process.pid):
        if _parent(pid) == process.pid:
            with suppress(OSError):
                os.kill(pid, signal.SIGTERM)


def _parent(pid: int) -> int:
    try:
        return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):  # it has ended
        return 0


def end_watched(process: subprocess.Popen[bytes]) -> None:
    """End the guard, which first ends the command."""
    with suppress(OSError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
