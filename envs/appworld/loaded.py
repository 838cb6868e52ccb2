"""The owner's side of :mod:`agentgym.envs.appworld.forks`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from agentgym.envs.appworld import forks
from agentgym.envs.gui import guard
from agentgym.envs.watched import KEPT_VARIABLES, end_watched, start_watched

_TOLD = 1500
_STOP_S = 10.0


class LoadedAppWorld:
    """A process that has loaded AppWorld, for all environments of this process with the same Python.

    The first job starts it. It ends with the last environment that uses it.

    Args:
        python: an interpreter with ``appworld``.
    """

    _shared: ClassVar[dict[tuple[int, str], LoadedAppWorld]] = {}
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, python: str) -> None:
        self._python = python
        self._lock = threading.Lock()
        self._num_users = 0
        self._folder: Path | None = None
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None

    @classmethod
    def shared(cls, python: str) -> LoadedAppWorld:
        """Return the process of a Python, which the caller must leave again."""
        with cls._shared_lock:
            found = cls._shared.setdefault((os.getpid(), python), cls(python))
            found._num_users += 1
            return found

    def leave(self) -> None:
        """End the process if nobody else uses it."""
        with self._shared_lock:
            self._num_users -= 1
            if self._num_users == 0:
                self._shared.pop((os.getpid(), self._python), None)
                self._end()

    def start(self, name: str, folder: Path, variables: Mapping[str, str], words: Sequence[str] = ()) -> Job:
        """Start a job: ``serve`` or ``judge``."""
        mine, its = socket.socketpair()
        message = {"name": name, "folder": str(folder), "variables": dict(variables), "words": list(words)}
        with its, self._lock:
            if self._process is None or self._process.poll() is not None:
                self._load()
            assert self._control is not None
            with suppress(OSError):  # it does not start; the job's socket says so
                socket.send_fds(self._control, [json.dumps(message).encode()], [its.fileno()])
        return Job(mine)

    def said(self) -> str:
        """Return the end of the process's output."""
        log = self._folder / "log.txt" if self._folder else None
        return log.read_text(errors="replace")[-_TOLD:].strip() if log and log.is_file() else ""

    def _load(self) -> None:
        self._end()
        self._folder = Path(tempfile.mkdtemp(prefix="agentgym-appworld-"))
        self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [self._python, forks.__file__, str(its.fileno()), guard.__file__]
        with its:
            self._process = start_watched(command, variables_of(self._folder), self._folder, (its.fileno(),))
        self._end = weakref.finalize(self, _end, self._control, self._process, self._folder)


class Job:
    """A forked process: a server, or a run of a task's tests.

    Args:
        connection: the job's socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._said = b""
        self.pid: int | None = None
        self.port = 0
        self.end = weakref.finalize(self, _hang_up, connection)

    def begins(self, timeout_s: float) -> bool:
        """Wait until the process is there. Return False if it never will be.

        Raises:
            TimeoutError: it did not begin in time.
        """
        line = self._line(timeout_s)
        if not line:
            return False
        said: dict[str, Any] = json.loads(line)
        self.pid, self.port = said["pid"], said["port"]
        return True

    def exit_code(self, timeout_s: float) -> int | None:
        """Wait for the end, and return the exit code; None if the process was killed together with its watcher.

        Raises:
            TimeoutError: it did not end in time.
        """
        line = self._line(timeout_s)
        return int(line) if line else None

    def _line(self, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._said:
            self._connection.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                read = self._connection.recv(1024)
            except ConnectionError:
                read = b""
            if not read:
                return b""
            self._said += read
        line, _, self._said = self._said.partition(b"\n")
        return line


def variables_of(root: Path) -> dict[str, str]:
    """Return the environment variables of an AppWorld process, with its folder instead of any set by the user."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    own = {"HOME": str(root), "APPWORLD_ROOT": str(root), "APPWORLD_CACHE": str(root / "cache")}
    # so that sets have the same order in every process
    return {**kept, **own, "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0"}


def _hang_up(connection: socket.socket) -> None:
    """End a job, and wait until nothing of it runs."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(_STOP_S)
        while connection.recv(1024):
            pass
    connection.close()


def _end(control: socket.socket, process: subprocess.Popen[bytes], folder: Path) -> None:
    control.close()
    end_watched(process)
    shutil.rmtree(folder, ignore_errors=True)
