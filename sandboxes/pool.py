"""A warm pool of sandboxes, which are opened in advance and reset after each use.

Threads of the pool open and reset sandboxes, and check that each can run a program. Acquiring takes a ready one and
asks whether it still answers. A sandbox that does not, or that cannot be reset, is closed and replaced.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Unpack

from agentgym.errors import AgentGymError, ClosedError, SandboxError, SandboxUnavailableError, error_text
from agentgym.sandbox import Capabilities, ExecResult, FileInfo, Limits, Sandbox, Snapshot
from agentgym.sandboxes.worker_sandbox import RunOptions
from agentgym.settings import Range, check_number

_NUM_OPENERS = 2
_RETRY_S = 0.5
_MAX_FAILURES = 3
_ACQUIRE_S = 60.0
_CHECK_S = 5.0


class SandboxPool:
    """A pool of sandboxes of one kind and image.

    Args:
        open_one: opens a new sandbox; called in threads of the pool.
        num_ready: number of unused sandboxes to keep open.
        max_open: most sandboxes in use and ready together; further callers wait.

    Example:
        >>> from agentgym.sandboxes.process import ProcessSandbox
        >>> with SandboxPool(ProcessSandbox, num_ready=1, max_open=1) as pool:
        ...     with pool.acquire() as sandbox:
        ...         sandbox.write("notes.txt", "mine")
        ...     with pool.acquire() as sandbox:  # the same one, as new
        ...         len(sandbox.list())
        0
    """

    def __init__(self, open_one: Callable[[], Sandbox], *, num_ready: int = 2, max_open: int = 16) -> None:
        check_number("num_ready", num_ready, Range(at_least=1, at_most=max_open))
        self._open_one, self._num_ready, self._max_open = open_one, num_ready, max_open
        self._changed = threading.Condition()
        self._ready: deque[Sandbox] = deque()
        self._used: deque[Sandbox] = deque()
        self._lent: set[Sandbox] = set()
        self._num_open = 0  # includes those being opened, reset or closed
        self._num_waiting = 0
        self._num_failures = 0
        self._failure: AgentGymError | None = None
        self._is_closed = False
        self.num_replaced = 0
        """Number of sandboxes that did not answer or could not be reset."""
        self._threads = [
            threading.Thread(target=self._work, name=f"sandbox pool {number}", daemon=True)
            for number in range(_NUM_OPENERS)
        ]
        for thread in self._threads:
            thread.start()

    def acquire(self, timeout_s: float = _ACQUIRE_S) -> PooledSandbox:
        """Return a sandbox in its initial state. Its ``close()`` gives it back to the pool.

        Raises:
            SandboxError: opening failed several times while waiting; the error is the last failure.
            SandboxUnavailableError: all sandboxes stayed in use for ``timeout_s`` seconds.
            ClosedError: the pool is closed.
        """
        patience = _Patience(timeout_s, self._num_failures)
        while True:
            sandbox = self._take(patience)
            if sandbox.alive():
                return PooledSandbox(self, sandbox)
            self._replace(sandbox)

    def wait_until_ready(self, timeout_s: float = _ACQUIRE_S) -> None:
        """Wait until ``num_ready`` sandboxes are ready. Raises the errors of :meth:`acquire`."""
        patience = _Patience(timeout_s, self._num_failures)
        with self._changed:
            while len(self._ready) < self._num_ready:
                self._wait(patience)

    @property
    def num_open(self) -> int:
        """Number of sandboxes in use, ready, or being opened, reset or closed."""
        return self._num_open

    def close(self) -> None:
        """Close all sandboxes, including those in use; a second call does nothing."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        closers = [threading.Thread(target=_close, args=(one,)) for one in (*self._ready, *self._used, *self._lent)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()
        self._ready.clear()
        self._used.clear()
        self._num_open = 0

    def __enter__(self) -> SandboxPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def give_back(self, sandbox: Sandbox, *, is_busy: bool) -> None:
        """Take a sandbox back for :meth:`PooledSandbox.close`. A busy sandbox is ended instead of waited for."""
        if is_busy:
            self._replace(sandbox)
            return
        with self._changed:
            self._lent.discard(sandbox)
            if not self._is_closed:
                self._used.append(sandbox)
                self._changed.notify_all()
                return
        _close(sandbox)

    def _take(self, patience: _Patience) -> Sandbox:
        with self._changed:
            self._num_waiting += 1
            try:
                self._changed.notify_all()
                while self._is_closed or not self._ready:
                    self._wait(patience)
                sandbox = self._ready.popleft()
                self._lent.add(sandbox)
                self._changed.notify_all()
                return sandbox
            finally:
                self._num_waiting -= 1

    def _wait(self, patience: _Patience) -> None:
        if self._is_closed:
            raise ClosedError("the pool of sandboxes is closed")
        if self._failure is not None and self._num_failures - patience.num_failures_before >= _MAX_FAILURES:
            raise self._failure
        left_s = patience.deadline - time.monotonic()
        if left_s <= 0:
            raise SandboxUnavailableError(
                f"no sandbox became free within {patience.timeout_s:g} s; {self._num_open} of {self._max_open} are open"
            )
        self._changed.wait(left_s)

    def _replace(self, sandbox: Sandbox) -> None:
        _close(sandbox)
        with self._changed:
            self._lent.discard(sandbox)
            self._num_open -= 1
            self.num_replaced += 1
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._is_closed or self._used or self._wants_more()):
                    self._changed.wait()
                if self._is_closed:
                    return
                sandbox = self._used.popleft() if self._used else None
                self._num_open += sandbox is None
            if sandbox is None:
                self._open()
            else:
                self._make_as_new(sandbox)

    def _wants_more(self) -> bool:
        num_idle = self._num_open - len(self._lent)  # ready or being prepared
        return self._num_open < self._max_open and num_idle < max(self._num_ready, self._num_waiting)

    def _make_as_new(self, sandbox: Sandbox) -> None:
        try:
            sandbox.reset()
            _check(sandbox)
        except Exception:  # catch everything: without this thread, no caller would get a sandbox any more
            self._replace(sandbox)
            return
        with self._changed:
            self._ready.append(sandbox)
            self._changed.notify_all()

    def _open(self) -> None:
        try:
            sandbox = _checked(self._open_one())
        except Exception as error:
            failure = error if isinstance(error, AgentGymError) else SandboxError(error_text(error))
            with self._changed:
                self._num_open -= 1
                self._num_failures += 1
                self._failure = failure
                self._changed.notify_all()
                if not self._is_closed:
                    self._changed.wait(_RETRY_S)
            return
        with self._changed:
            self._ready.append(sandbox)
            self._changed.notify_all()


class _Patience:
    """The limits of a waiting caller: its time-out, and the number of failures before it began to wait."""

    def __init__(self, timeout_s: float, num_failures: int) -> None:
        self.timeout_s, self.num_failures_before = timeout_s, num_failures
        self.deadline = time.monotonic() + timeout_s


class PooledSandbox:
    """A sandbox that is lent from a pool. After it is given back, its holder can no longer use it."""

    def __init__(self, pool: SandboxPool, sandbox: Sandbox) -> None:
        self._pool, self._sandbox = pool, sandbox
        self.env: Mapping[str, str] = {}
        """Environment variables of every program, which those of a call replace."""
        self._lock = threading.Lock()
        self._num_calls = 0  # number of running calls
        self._is_given_back = False

    @property
    def id(self) -> str:
        """Unique name of the sandbox."""
        return self._sandbox.id

    @property
    def workspace(self) -> str:
        """Path of the workspace for code inside the sandbox."""
        return self._sandbox.workspace

    @property
    def limits(self) -> Limits:
        """The limits in use."""
        return self._sandbox.limits

    def exec(self, command: str | Sequence[str], **options: Unpack[RunOptions]) -> ExecResult:
        """Run a program; see :meth:`agentgym.sandbox.Sandbox.exec`."""
        with self._mine() as sandbox:
            return sandbox.exec(command, **self._with_env(options))

    def run_python(self, code: str, **options: Unpack[RunOptions]) -> ExecResult:
        """Run Python code; see :meth:`agentgym.sandbox.Sandbox.run_python`."""
        with self._mine() as sandbox:
            return sandbox.run_python(code, **self._with_env(options))

    def read(self, path: str) -> bytes:
        """Return a file's content; see :meth:`agentgym.sandbox.Sandbox.read`."""
        with self._mine() as sandbox:
            return sandbox.read(path)

    def write(self, path: str, data: str | bytes) -> None:
        """Write a file; see :meth:`agentgym.sandbox.Sandbox.write`."""
        with self._mine() as sandbox:
            sandbox.write(path, data)

    def list(self, path: str = ".", *, recursive: bool = False) -> tuple[FileInfo, ...]:
        """Return a folder's entries; see :meth:`agentgym.sandbox.Sandbox.list`."""
        with self._mine() as sandbox:
            return sandbox.list(path, recursive=recursive)

    def snapshot(self) -> Snapshot:
        """Return the files of the workspace; see :meth:`agentgym.sandbox.Sandbox.snapshot`."""
        with self._mine() as sandbox:
            return sandbox.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Restore the files of the workspace; see :meth:`agentgym.sandbox.Sandbox.restore`."""
        with self._mine() as sandbox:
            sandbox.restore(snapshot)

    def reset(self) -> None:
        """Return the sandbox to its initial state; see :meth:`agentgym.sandbox.Sandbox.reset`."""
        with self._mine() as sandbox:
            sandbox.reset()

    def alive(self) -> bool:
        """Return True if the sandbox answers; see :meth:`agentgym.sandbox.Sandbox.alive`."""
        return not self._is_given_back and self._sandbox.alive()

    def capabilities(self) -> Capabilities:
        """Return the guarantees on this machine."""
        return self._sandbox.capabilities()

    def close(self) -> None:
        """Give the sandbox back to the pool. A running call fails; a second ``close`` does nothing."""
        with self._lock:
            if self._is_given_back:
                return
            self._is_given_back, is_busy = True, self._num_calls > 0
        self._pool.give_back(self._sandbox, is_busy=is_busy)

    def __enter__(self) -> PooledSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _with_env(self, options: RunOptions) -> RunOptions:
        return {**options, "env": {**self.env, **(options.get("env") or {})}}

    @contextmanager
    def _mine(self) -> Iterator[Sandbox]:
        with self._lock:
            if self._is_given_back:
                raise ClosedError(f"sandbox {self._sandbox.id} was given back to its pool")
            self._num_calls += 1
        try:
            yield self._sandbox
        finally:
            with self._lock:
                self._num_calls -= 1


def _check(sandbox: Sandbox) -> None:
    """Check that the sandbox can run a program, which an answer alone does not prove."""
    result = sandbox.run_python("print(1)", timeout_s=min(_CHECK_S, sandbox.limits.wall_s))
    if result.stdout != "1\n":
        raise SandboxError(f"sandbox {sandbox.id} answers and cannot run print(1): {result}")


def _checked(sandbox: Sandbox) -> Sandbox:
    try:
        _check(sandbox)
    except BaseException:
        _close(sandbox)
        raise
    return sandbox


def _close(sandbox: Sandbox) -> None:
    with suppress(Exception):
        sandbox.close()
