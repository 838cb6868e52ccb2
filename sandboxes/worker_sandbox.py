"""The host's side of every sandbox: requests to the worker inside and handling of its answers.

A backend starts the worker (:meth:`WorkerSandbox._start`), reports its guarantees, and ends it. The rest is here.
"""

from __future__ import annotations

import atexit
import json
import os
import struct
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypedDict, Unpack

from agentgym.errors import (
    ClosedError,
    ConfigError,
    SandboxDeadError,
    SandboxError,
    SandboxFileError,
    SandboxRefusedError,
    SandboxSpentError,
)
from agentgym.sandbox import Capabilities, ExecResult, FileInfo, Limits, Snapshot
from agentgym.sandboxes.stream import Stream, StreamEnded

_MIB = 1 << 20
_GRACE_S = 10.0  # seconds after a call's time-out, which the worker enforces, until the worker itself counts as hung
_START_S = 30.0
_LISTING_BYTES = 8 * _MIB
_PROBE_S = 5.0


class RunOptions(TypedDict, total=False):
    """Options of :meth:`agentgym.sandbox.Sandbox.exec` and ``run_python``."""

    stdin: str | bytes
    timeout_s: float | None
    env: Mapping[str, str] | None
    cwd: str
    user: str


@dataclass(slots=True)
class _Answer:
    reply: dict[str, Any]
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)


class WorkerSandbox:
    """Base class of sandboxes with the worker ``inside/worker.py``; implements :class:`~agentgym.sandbox.Sandbox`."""

    backend = ""

    def __init__(self, sandbox_id: str, limits: Limits, users: Sequence[str]) -> None:
        self.id, self.limits, self._users = sandbox_id, limits, tuple(users)
        self._lock = threading.Lock()  # one request at a time
        self._ending = threading.Lock()
        self._stream: Stream | None = None
        self._is_closed = False
        self._death: SandboxDeadError | SandboxSpentError | None = None
        self._answered_s = time.time()
        """Unix time of the worker's last answer."""
        self._has_ended = False
        self._pid = os.getpid()

    # ------------------------------------------------------------------------------------------ backends implement

    @property
    @abstractmethod
    def workspace(self) -> str:
        """Path of the workspace for code inside the sandbox."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return the guarantees on this machine."""

    @abstractmethod
    def _end(self) -> None:
        """Kill the worker and free the sandbox's resources. It must not fail if they are already gone."""

    @abstractmethod
    def _post_mortem(self) -> str:
        """Return the reason why the worker died, as far as known, and what to do."""

    @abstractmethod
    def _blame(self) -> str:
        """Return how the code inside ended the sandbox; empty if another cause is possible."""

    # -------------------------------------------------------------------------------------------------- the contract

    def exec(self, command: str | Sequence[str], **options: Unpack[RunOptions]) -> ExecResult:
        """Run a program; see :meth:`agentgym.sandbox.Sandbox.exec`."""
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        if not argv or not all(isinstance(part, str) and "\0" not in part for part in argv):
            raise ConfigError(f"a command is a string or a sequence of at least one, without NUL; got {command!r}")
        return self._run({"op": "exec", "argv": argv}, **options)

    def run_python(self, code: str, **options: Unpack[RunOptions]) -> ExecResult:
        """Run Python code; see :meth:`agentgym.sandbox.Sandbox.run_python`."""
        return self._run({"op": "python", "code": code}, **options)

    def read(self, path: str) -> bytes:
        """Return a file's content; see :meth:`agentgym.sandbox.Sandbox.read`."""
        return bytes(self._file("read", path, self.limits.file_mb * _MIB).stdout)

    def write(self, path: str, data: str | bytes) -> None:
        """Write a file; see :meth:`agentgym.sandbox.Sandbox.write`."""
        try:
            payload = _as_bytes(data)
        except UnicodeEncodeError as error:
            raise SandboxFileError(f"write {path}: the text cannot be encoded: {error.reason}", "not_text") from None
        self._file("write", path, payload=payload)

    def list(self, path: str = ".", *, recursive: bool = False) -> tuple[FileInfo, ...]:
        """Return a folder's entries; see :meth:`agentgym.sandbox.Sandbox.list`."""
        rows = json.loads(self._file("list", path, _LISTING_BYTES, recursive=recursive).stdout)
        return tuple(sorted(FileInfo(path=name, size_bytes=size, kind=kind) for name, size, kind in rows))

    def snapshot(self) -> Snapshot:
        """Return the files of the workspace; see :meth:`agentgym.sandbox.Sandbox.snapshot`."""
        most = self.limits.workspace_mb * _MIB
        return Snapshot(bytes(self._file("snapshot", "", 2 * most, max_bytes=most).stdout))

    def restore(self, snapshot: Snapshot) -> None:
        """Restore the files of the workspace; see :meth:`agentgym.sandbox.Sandbox.restore`."""
        self._file("restore", "", payload=snapshot.tar)

    def reset(self) -> None:
        """Return the sandbox to its initial state; see :meth:`agentgym.sandbox.Sandbox.reset`."""
        with self._lock:
            problem = self._ask({"op": "reset"}, _GRACE_S + _PROBE_S).reply["problem"]
            if problem:
                raise SandboxError(f"sandbox {self.id} cannot be reset: {problem}; close it and open another")
            self._receive(_START_S)  # the worker has restarted

    def alive(self) -> bool:
        """Return True if the sandbox answers; see :meth:`agentgym.sandbox.Sandbox.alive`."""
        if self._is_closed or self._death is not None or self._stream is None:
            return False
        if not self._lock.acquire(blocking=False):
            return self._stream.is_open
        try:
            return bool(self._ask({"op": "ping"}, _PROBE_S).reply["ok"])
        except (SandboxError, SandboxSpentError, ClosedError):
            return False
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the sandbox and free its resources; see :meth:`agentgym.sandbox.Sandbox.close`."""
        if not self._is_closed:
            self._is_closed = True
            self._end_once()

    def __enter__(self) -> WorkerSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --------------------------------------------------------------------------------------------------- the requests

    def _start(self, stream: Stream) -> None:
        """Set the connection to a starting worker and wait until it is ready."""
        self._stream = stream
        if not _open:
            atexit.register(_close_all)  # registered after, and therefore run before, the removal of the run's folder
        _open.add(self)
        with self._lock:
            self._receive(_START_S)

    def _run(
        self,
        request: dict[str, object],
        stdin: str | bytes = b"",
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = ".",
        user: str = "agent",
    ) -> ExecResult:
        longest_s = self.limits.wall_s
        timeout_s = longest_s if timeout_s is None else timeout_s
        if not 0 < timeout_s <= longest_s:
            raise ConfigError(f"timeout_s must be above 0 and at most the limit wall_s {longest_s}, got {timeout_s}")
        if user not in self._users:
            raise SandboxRefusedError(
                f"no user {user!r} in sandbox {self.backend!r}; there is: {', '.join(self._users)}"
            )
        request |= {"env": dict(env or {}), "cwd": cwd, "user": user, "output_bytes": self.limits.output_bytes}
        answer = self._job(request, _as_bytes(stdin), timeout_s)
        reply = answer.reply
        if reply["refused"]:
            kind, words = reply["refused"]
            raise SandboxFileError(words, kind)
        return ExecResult(
            exit_code=reply["exit_code"],
            stdout=answer.stdout.decode(errors="replace"),
            stderr=answer.stderr.decode(errors="replace"),
            limit=reply["limit"],
            stdout_cut=reply["stdout_cut"],
            stderr_cut=reply["stderr_cut"],
            wall_s=reply["wall_s"],
            cpu_s=reply["cpu_s"],
        )

    def _file(self, op: str, path: str, output_bytes: int = 0, payload: bytes = b"", **more: object) -> _Answer:
        if "\0" in path:
            raise SandboxFileError(f"{path!r}: a path has no NUL", "not_found")
        request = {"op": op, "path": path, "user": "agent", "output_bytes": output_bytes, **more}
        answer = self._job(request, payload, self.limits.wall_s)
        reply = answer.reply
        if reply["refused"]:
            kind, words = reply["refused"]
            raise SandboxFileError(words, kind)
        if reply["exit_code"] or reply["stdout_cut"]:
            what = f"limit {reply['limit']}" if reply["limit"] else f"exit code {reply['exit_code']}"
            raise SandboxFileError(f"{op} {path}: {what} {answer.stderr.decode(errors='replace')[-500:]}", "failed")
        return answer

    def _job(self, request: dict[str, object], payload: bytes, timeout_s: float) -> _Answer:
        with self._lock:
            answer = self._ask(request | {"timeout_s": timeout_s}, timeout_s + _GRACE_S, payload)
        if not answer.reply["clean"]:
            self._die("what ran in it could not be killed", blame="it has processes that do not end")
        return answer

    def _ask(self, request: dict[str, object], patience_s: float, payload: bytes = b"") -> _Answer:
        stream = self._usable()
        head = json.dumps(request | {"payload": len(payload)}).encode()
        stream.push(struct.pack(">I", len(head)) + head + payload)
        return self._receive(patience_s)

    def _receive(self, patience_s: float) -> _Answer:
        stream = self._usable()
        deadline = time.monotonic() + patience_s
        stdout, stderr = bytearray(), bytearray()
        try:
            while True:
                kind, content = stream.next_frame(deadline)
                if kind == b"R":
                    self._note_answer()
                    return _Answer(json.loads(content), stdout, stderr)
                (stdout if kind == b"O" else stderr).extend(content)
        except StreamEnded:
            self._die(self._post_mortem())
        except TimeoutError:
            self._die(f"it did not answer within {patience_s:.0f} s")

    def _note_answer(self) -> None:
        """Record the state with which a later death is compared."""
        self._answered_s = time.time()

    def _usable(self) -> Stream:
        if self._is_closed:
            raise ClosedError(f"sandbox {self.id} is closed")
        if self._death is not None:
            raise type(self._death)(str(self._death))
        if self._stream is None:
            raise SandboxError(f"sandbox {self.id} has not been started")
        return self._stream

    def _die(self, reason: str, blame: str = "") -> NoReturn:
        """Record the death, free the resources, and raise the error.

        A death caused by the code inside is evidence about the policy. If it were an infrastructure failure, a policy
        could void its episode.
        """
        if self._is_closed:
            raise ClosedError(f"sandbox {self.id} was closed during a call")
        blame = blame or self._blame()
        if blame:
            self._death = SandboxSpentError(f"the sandbox was ended by what ran in it: {blame}")
        else:
            self._death = SandboxDeadError(f"sandbox {self.id} ({self.backend}) died: {reason}")
        with suppress(SandboxError):
            self._end_once()
        raise self._death

    def _end_once(self) -> None:
        with self._ending:
            if not self._has_ended:
                self._has_ended = True
                if self._stream is not None:
                    self._stream.close()
                self._end()


_open: weakref.WeakSet[WorkerSandbox] = weakref.WeakSet()


def _close_all() -> None:
    """Close open sandboxes when the interpreter exits, except in a forked child."""
    for sandbox in list(_open):
        if sandbox._pid == os.getpid():
            with suppress(Exception):
                sandbox.close()


def _as_bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data
