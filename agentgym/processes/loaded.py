"""The owner's side of :mod:`agentgym.processes.forks`."""

from __future__ import annotations

import asyncio
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

from agentgym.processes import forks, guard
from agentgym.processes.watched import end_of_log, end_watched, start_watched

_STOP_S = 10.0

Variables = Callable[[Path], Mapping[str, str]]
"""Returns the environment variables of a process with that folder."""


class Loaded:
    """A process that has loaded a program and forks for its jobs, shared by all in this process that use it.

    The first job starts it. It ends with the last of its users, or with this process.

    Args:
        python: an interpreter with what the program imports.
        program: a file with the functions that do jobs.
        variables: of the process that loads.
    """

    _shared: ClassVar[dict[tuple[int, str, Path], Loaded]] = {}
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, python: str, program: Path, variables: Variables) -> None:
        self._python, self._program, self._variables = python, program, variables
        self._lock = threading.Lock()
        self._num_users = 0
        self._folder: Path | None = None
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None

    @classmethod
    def shared(cls, python: str, program: Path, variables: Variables) -> Loaded:
        """Return the process that has loaded a program; a caller that leaves it again lets it end."""
        with cls._shared_lock:
            key = (os.getpid(), python, program)
            found = cls._shared.setdefault(key, cls(python, program, variables))
            found._num_users += 1
            return found

    def leave(self) -> None:
        """End the process if nobody else uses it."""
        with self._shared_lock:
            self._num_users -= 1
            if self._num_users == 0:
                self._shared.pop((os.getpid(), self._python, self._program), None)
                self._end()

    def start(
        self,
        function: str,
        folder: Path,
        variables: Mapping[str, str],
        arguments: Sequence[str] = (),
        *,
        listens: bool = False,
    ) -> ForkedProcess:
        """Start a job: call a function of the program in a folder, which gets the output as ``log.txt``.

        Args:
            variables: environment variables that this job has besides those of the loaded process.
            listens: True if the function's first argument is a socket that listens on a free port of this machine.
        """
        mine, its = socket.socketpair()
        message = {
            "function": function, "folder": str(folder), "variables": dict(variables), "arguments": list(arguments),
            "listens": listens,
        }  # fmt: skip
        with its, self._lock:
            if self._process is None or self._process.poll() is not None:
                self._load()
            assert self._control is not None
            with suppress(OSError):  # it does not start; the job's socket says so
                socket.send_fds(self._control, [json.dumps(message).encode()], [its.fileno()])
        return ForkedProcess(mine)

    def said(self) -> str:
        """Return the end of the process's output."""
        return end_of_log(self._folder) if self._folder else ""

    def _load(self) -> None:
        self._end()
        self._folder = Path(tempfile.mkdtemp(prefix="agentgym-loaded-"))
        self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [self._python, forks.__file__, str(its.fileno()), guard.__file__, str(self._program)]
        with its:
            self._process = start_watched(command, self._variables(self._folder), self._folder, (its.fileno(),))
        self._end = weakref.finalize(self, _end, self._control, self._process, self._folder)


class ForkedProcess:
    """A forked process.

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

    async def ended(self) -> int | None:
        """Wait in an event loop for the end, and return the exit code; None if the process was killed or never began.

        It has begun if ``pid`` is set.
        """
        self._connection.setblocking(False)
        loop = asyncio.get_running_loop()
        while self._said.count(b"\n") < 2:
            try:
                read = await loop.sock_recv(self._connection, 1024)
            except ConnectionError:
                read = b""
            if not read:
                return None
            self._said += read
            if self.pid is None and b"\n" in self._said:
                self.pid = json.loads(self._said.partition(b"\n")[0])["pid"]
        return int(self._said.split(b"\n")[1])

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
