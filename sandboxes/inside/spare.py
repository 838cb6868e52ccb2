"""The process of the next job, forked before its request arrives, so that no call waits for the fork.

It exists only between jobs: the next job runs in it, and another is forked after the sweep that follows each job. So
code of the agent never runs beside a spare process.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any

from agentgym.sandboxes.inside.job import run_job


def write_all(fd: int, data: bytes | bytearray) -> None:
    """Write all data to a pipe or socket."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Spare:
    """A process that waits for a request, with the worker's ends of its pipes."""

    def __init__(self, settings: dict[str, Any]) -> None:
        stdin, stdout, stderr, report, order = (os.pipe() for _ in range(5))
        theirs = (stdin[0], stdout[1], stderr[1])
        self.pid = os.fork()
        if self.pid == 0:
            os.close(order[1])  # otherwise it would wait for itself
            run_job(settings, theirs, report[1], order[0])
        for fd in (*theirs, report[1], order[0]):
            os.close(fd)
        self.stdin, self.stdout, self.stderr, self.report = stdin[1], stdout[0], stderr[0], report[0]
        self._order, self._is_waiting = order[1], True

    def has_ended(self) -> bool:
        """Return True if the process ended while it waited, for example because memory ran out."""
        if os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            return False
        self._close()
        return True

    def start(self, request: bytes) -> None:
        """Send the request. If the process ends before it reads the request, its exit says so, as of any job."""
        self._is_waiting = False
        with suppress(BrokenPipeError):
            write_all(self._order, request)
        os.close(self._order)
        for fd in (self.stdin, self.stdout, self.stderr, self.report):
            os.set_blocking(fd, False)

    def discard(self) -> None:
        """End the process if no request was sent to it."""
        if self._is_waiting:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._close()

    def _close(self) -> None:
        self._is_waiting = False
        for fd in (self._order, self.stdin, self.stdout, self.stderr, self.report):
            os.close(fd)
