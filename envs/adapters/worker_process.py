"""A child process that answers requests, one JSON value per line, for engines that crash, hang or have global state."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from typing import Any

from agentgym.errors import EnvError, EnvTimeoutError

_TAIL_BYTES = 2000
_CHUNK_BYTES = 1 << 16


class WorkerProcess:
    """A child process ``python -m module PARENT_PID`` that answers requests over its standard input and output.

    The child must answer each line with one line, ``{"error": text}`` on failure. It must end when its input ends or
    its parent is gone. It runs in a separate session, so that Ctrl-C reaches only the parent. It is killed when this
    object is closed or garbage-collected. The order of sets, and so a draw from them, is the same in every child.

    Args:
        module: name of the module to run in the child.
    """

    def __init__(self, module: str) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the child)
        # The child has this process's import path, but without the working directory, where a file might have the name
        # of a package.
        path = os.pathsep.join(part or os.getcwd() for part in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            # some engines draw from sets, whose order must be the same in every process
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        self._buffer = b""
        self._finalizer = weakref.finalize(self, _kill, self._process)

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """True until the child has ended."""
        return self._process.poll() is None

    def call(self, timeout_s: float, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer.

        Args:
            timeout_s: time limit of the answer in seconds.
            request: fields of the request, such as ``op``.

        Raises:
            EnvTimeoutError: the child did not answer in time and was killed.
            EnvError: the child died or answered with an error.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # the pipe is broken by the child's death, or another thread has closed it
            raise self._died() from None
        answer: dict[str, Any] = json.loads(self._read_line(timeout_s, request))
        if "error" in answer:
            raise EnvError(f"the worker: {answer['error']}")
        return answer

    def close(self) -> None:
        """Kill the child; a second call does nothing."""
        self._finalizer()
        self._stderr.close()

    def _read_line(self, timeout_s: float, request: dict[str, Any]) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            try:
                selector.register(self._process.stdout, selectors.EVENT_READ)
            except ValueError:  # another thread has closed the pipe
                raise self._died() from None
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.close()
                    raise EnvTimeoutError(f"the worker did not answer {request} within {timeout_s:g} s")
                chunk = os.read(self._process.stdout.fileno(), _CHUNK_BYTES)
                if not chunk:
                    raise self._died()
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _died(self) -> EnvError:
        try:
            code: int | None = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            code = None
        said = ""
        if not self._stderr.closed:
            size = self._stderr.seek(0, os.SEEK_END)
            self._stderr.seek(max(0, size - _TAIL_BYTES))
            said = self._stderr.read().decode(errors="replace").strip()
        self.close()
        return EnvError(f"the worker died with exit code {code}{': ' + said if said else ''}")


class SharedWorker:
    """A child process that several callers share. Its answers must depend only on the request.

    The first request starts the child, and a request after its death restarts it. The time to start does not count
    towards a request's time limit.

    Args:
        module: name of the module to run in the child; it must answer ``op="ready"`` once it has loaded.
        load_timeout_s: time limit of the start in seconds.
    """

    def __init__(self, module: str, load_timeout_s: float) -> None:
        self._module = module
        self._load_timeout_s = load_timeout_s
        self._lock = threading.Lock()
        self._worker: WorkerProcess | None = None

    def call(self, timeout_s: float, **request: Any) -> dict[str, Any]:
        """Send a request, as :meth:`WorkerProcess.call` does. Requests run one at a time; waiting does not count."""
        with self._lock:
            if self._worker is None or not self._worker.is_alive:
                if self._worker is not None:
                    self._worker.close()
                self._worker = WorkerProcess(self._module)
                self._worker.call(self._load_timeout_s, op="ready")
            return self._worker.call(timeout_s, **request)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # closing flushes unsent bytes into the pipe of a dead child
                pipe.close()
