"""The sandbox contract: where an agent's code runs, which limits apply, and which guarantees hold on this machine.

A sandbox has one writable workspace. It runs one call at a time, under :class:`Limits`, and no process outlives the
call that started it. Faults of the agent's code (exit codes, time-outs, missing files) are returned as data or raised
as :class:`~agentgym.errors.SandboxFileError`, which is shown to the model. Faults of the machine (the daemon is down,
the sandbox died) are raised as :class:`~agentgym.errors.SandboxError`, which never becomes a reward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, get_args, runtime_checkable

from agentgym.errors import ConfigError, SandboxRefusedError, require_known
from agentgym.settings import Count, Positive, Range, Settings, check_ranges

GuaranteeName = Literal["filesystem", "network", "cpu", "memory", "pids", "time", "signals", "user"]
GUARANTEES: tuple[GuaranteeName, ...] = get_args(GuaranteeName)
"""Guarantees that a caller may require. In the order of the names: code reads and writes only its own files; it has no
network; it gets a limited share of the CPUs; the memory of all its processes together is capped; so is their number; a
time-out kills them all; it can signal no others; it runs as an unprivileged user, and its supervisor as another."""

LimitName = Literal["", "wall", "cpu", "memory"]

_RESERVE_MB = 64  # MB left for the worker and the smallest program when the temporary file systems are full


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(Settings):
    """Limits of a sandbox. Every limit is on by default.

    ``cpu_s``, ``file_mb`` and ``num_open_files`` apply to each process, the others to the whole sandbox. If the
    workspace lies in memory (docker, namespaces), files written there count as memory, so the sizes must fit together
    (see the example).

    Example:
        >>> Limits(wall_s=5, memory_mb=1024).num_pids
        128
        >>> Limits(workspace_mb=500)
        Traceback (most recent call last):
        agentgym.errors.ConfigError: workspace_mb 500 and twice tmp_mb 64 leave less than 64 of memory_mb 512
    """

    wall_s: Positive = 30.0
    """Longest run of one call, in wall seconds; also the default of ``timeout_s``."""
    cpu_s: Count = 30
    num_cpus: Positive = 1.0
    memory_mb: Count = 512
    """Memory of all processes together. Swap is off, so it cannot exceed this limit."""
    num_pids: Annotated[int, Range(at_least=4)] = 128
    """Most processes and threads at one time."""
    file_mb: Count = 64
    """Largest file."""
    num_open_files: Annotated[int, Range(at_least=16)] = 256
    output_bytes: Count = 1 << 20
    """Bytes kept of stdout and of stderr each; the rest is read and dropped."""
    workspace_mb: Count = 128
    tmp_mb: Count = 64
    """Size of ``/tmp``, and of ``/dev/shm``."""
    has_network: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.workspace_mb + 2 * self.tmp_mb + _RESERVE_MB > self.memory_mb:
            raise ConfigError(
                f"workspace_mb {self.workspace_mb} and twice tmp_mb {self.tmp_mb} leave less than {_RESERVE_MB} "
                f"of memory_mb {self.memory_mb}"
            )


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Mount:
    """A folder of the host that a sandbox can read. Code inside may also connect to sockets in it.

    Example:
        >>> Mount(host="/srv/agents", inside="/opt/agent").seen_in("process")
        '/srv/agents'
    """

    host: str
    inside: str

    def seen_in(self, backend: str) -> str:
        """Return the folder's path for code inside the sandbox; with ``process`` that is the host's own path."""
        return self.host if backend == "process" else self.inside


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """Result of one program.

    Example:
        >>> result = ExecResult(exit_code=-9, stdout="1\\n2\\n", stderr="", limit="wall", wall_s=2.0, cpu_s=1.9)
        >>> result.timed_out, result.is_cut
        (True, True)
    """

    exit_code: int
    """Exit code of the program; the negative signal number if a signal killed it."""
    stdout: str
    """Output decoded as UTF-8; invalid bytes are replaced."""
    stderr: str
    limit: LimitName = ""
    """Name of the limit that ended the program or one of its children; empty if none did."""
    stdout_cut: bool = False
    """True if the program wrote more than ``Limits.output_bytes``."""
    stderr_cut: bool = False
    wall_s: float
    cpu_s: float
    """CPU seconds of the program and of the children it waited for."""

    @property
    def timed_out(self) -> bool:
        """True if the program and its children were killed at the time limit."""
        return self.limit == "wall"

    @property
    def is_cut(self) -> bool:
        """True if output is missing: it exceeded the cap, or the program reached the time limit."""
        return self.stdout_cut or self.stderr_cut or self.timed_out

    @property
    def ok(self) -> bool:
        """True if the program exited by itself with code 0."""
        return self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FileInfo:
    """One entry of a folder.

    Example:
        >>> FileInfo(path="src/main.py", size_bytes=12, kind="file").kind
        'file'
    """

    path: str
    """Path relative to the workspace."""
    size_bytes: int
    kind: Literal["file", "folder", "link", "other"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a workspace, which can be restored into any sandbox. Running programs are not part of it."""

    tar: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """One of :data:`GUARANTEES`: whether it is in force, and by which means or why not."""

    name: GuaranteeName
    in_force: bool
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Guarantees of a sandbox on this machine, in force or not.

    Example:
        >>> here = Capabilities(backend="process", guarantees=(Guarantee(name="time", in_force=True, how="killed"),))
        >>> here.require({"time"})
        >>> here.require({"network"})
        Traceback (most recent call last):
        agentgym.errors.SandboxRefusedError: sandbox 'process' does not give network here: not offered
    """

    backend: str
    guarantees: tuple[Guarantee, ...]

    @property
    def in_force(self) -> frozenset[str]:
        """Names of the guarantees that hold."""
        return frozenset(guarantee.name for guarantee in self.guarantees if guarantee.in_force)

    def how(self, name: GuaranteeName) -> str:
        """Return by which means a guarantee is in force, or why it is not."""
        reasons = {guarantee.name: guarantee.how for guarantee in self.guarantees}
        return reasons.get(name, "not offered")

    def require(self, names: Iterable[str]) -> None:
        """Raise an error unless all named guarantees are in force.

        Raises:
            SandboxRefusedError: a guarantee is not in force; the message says which one and why.
            UnknownNameError: there is no such guarantee.
        """
        wanted = frozenset(names)
        for name in sorted(wanted):
            require_known("guarantee", name, GUARANTEES)
        if missing := sorted(wanted - self.in_force):
            text = "; ".join(f"{name} here: {self.how(name)}" for name in missing)  # type: ignore[arg-type]
            raise SandboxRefusedError(f"sandbox {self.backend!r} does not give {text}")


@runtime_checkable
class Sandbox(Protocol):
    """An isolated place to run code in, with its own workspace.

    Several threads may call a sandbox; the calls run one after the other. Paths are relative to the workspace, or
    absolute paths inside it. Code that runs later can read everything sent into the sandbox before (files, code,
    environment variables), so answers and graders belong in a separate sandbox.

    Every call may raise :class:`~agentgym.errors.SandboxError` (the infrastructure failed) and
    :class:`~agentgym.errors.ClosedError` (after ``close``).
    """

    @property
    def id(self) -> str:
        """Unique name of the sandbox."""
        ...

    @property
    def workspace(self) -> str:
        """Path of the workspace for code inside the sandbox."""
        ...

    @property
    def limits(self) -> Limits:
        """The limits in use."""
        ...

    def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes = b"",
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = ".",
        user: str = "agent",
    ) -> ExecResult:
        """Run a shell line (a string) or a program (a sequence), and kill the processes it leaves running.

        Args:
            command: the program and its arguments, or a string for ``sh -c``.
            stdin: the whole standard input.
            timeout_s: limit in wall seconds; at most ``Limits.wall_s``, which is also the default.
            env: environment variables in addition to a small fixed set; none are inherited from the host.
            cwd: the folder to start in.
            user: ``agent``, or ``grader``, whose processes and files the agent cannot access. ``grader`` needs the
                guarantee ``user``.

        Raises:
            SandboxFileError: the folder ``cwd`` does not exist.
            ConfigError: ``timeout_s`` is not in (0, ``Limits.wall_s``].
            SandboxRefusedError: ``user`` is not available on this machine.
        """
        ...

    def run_python(
        self,
        code: str,
        *,
        stdin: str | bytes = b"",
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = ".",
        user: str = "agent",
    ) -> ExecResult:
        """Run Python code as ``python3 -c`` would, in a fork of an interpreter that has already started.

        The arguments and errors are those of :meth:`exec`.
        """
        ...

    def read(self, path: str) -> bytes:
        """Return a file's content.

        Raises:
            SandboxFileError: the file is missing, a folder, outside the workspace, or larger than ``Limits.file_mb``.
        """
        ...

    def write(self, path: str, data: str | bytes) -> None:
        """Write a whole file and create its parent folders.

        Raises:
            SandboxFileError: the path is outside the workspace or a folder, or the content exceeds a limit.
        """
        ...

    def list(self, path: str = ".", *, recursive: bool = False) -> tuple[FileInfo, ...]:
        """Return a folder's entries, sorted by path.

        Raises:
            SandboxFileError: the folder is missing or outside the workspace.
        """
        ...

    def snapshot(self) -> Snapshot:
        """Return the current files of the workspace."""
        ...

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the files of the workspace with those of a snapshot; nothing else is restored."""
        ...

    def reset(self) -> None:
        """Return the sandbox to its initial state: no process runs, and every writable place is empty."""
        ...

    def alive(self) -> bool:
        """Return True if the sandbox answers and can run a program. During a call, return True if the connection to the
        inside is open.
        """
        ...

    def capabilities(self) -> Capabilities:
        """Return the guarantees on this machine."""
        ...

    def close(self) -> None:
        """End the sandbox and free its resources. A running call fails; a second ``close`` does nothing."""
        ...

    def __enter__(self) -> Sandbox: ...

    def __exit__(self, *_: object) -> None: ...


@runtime_checkable
class HostsAgents(Protocol):
    """An environment in whose sandbox an agent's program can run: its attribute ``sandbox`` after ``reset``."""

    def host_agent(self, mounts: Sequence[Mount], limits: Limits) -> None:
        """Use sandboxes with these mounts and limits from the next reset on. They do not apply to grading."""
        ...
