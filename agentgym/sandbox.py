"""The sandbox contract: where an agent's code runs, what holds it in, and what is known to hold *here*.

A sandbox has one writable workspace. Whatever runs in it runs under :class:`Limits`, one call at a time, and nothing
it started outlives the call. What the agent's code does (exit codes, time-outs, missing files) comes back as data or
as a :class:`~agentgym.errors.SandboxFileError`, which is shown to the model; what the machine does (a daemon that is
down, a sandbox that died) is a :class:`~agentgym.errors.SandboxError`, which never becomes a reward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, get_args, runtime_checkable

from agentgym.errors import ConfigError, SandboxRefusedError, require_known
from agentgym.settings import Count, Positive, Range, check_ranges

GuaranteeName = Literal["filesystem", "network", "cpu", "memory", "pids", "time", "user"]
GUARANTEES: tuple[GuaranteeName, ...] = get_args(GuaranteeName)
"""What a caller may require: reads and writes only what is its own; no network; a share of the processors; a cap on
the memory of all its processes together; a cap on their number; a time-out that kills them all; a user of its own
without rights, apart from the one that watches over it."""

LimitName = Literal["", "wall", "cpu", "memory"]

_RESERVE_MB = 64  # for the worker and the smallest program beside full temporary file systems


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a sandbox; every one is on unless it is changed here.

    ``cpu_s``, ``file_mb`` and ``num_open_files`` hold for each process, the others for the sandbox. Where the
    workspace lies in memory (docker, namespaces), what is written there counts as memory, hence the check below.

    Example:
        >>> Limits(wall_s=5, memory_mb=1024).num_pids
        128
        >>> Limits(workspace_mb=500)
        Traceback (most recent call last):
        agentgym.errors.ConfigError: workspace_mb 500 and twice tmp_mb 64 leave less than 64 of memory_mb 512
    """

    wall_s: Positive = 30.0
    """The longest one call may run; also the default of ``timeout_s``."""
    cpu_s: Count = 30
    num_cpus: Positive = 1.0
    memory_mb: Count = 512
    """Swap is off: it is no way around this."""
    num_pids: Annotated[int, Range(at_least=4)] = 128
    """Processes and threads at one time."""
    file_mb: Count = 64
    """Size of one file."""
    num_open_files: Annotated[int, Range(at_least=16)] = 256
    output_bytes: Count = 1 << 20
    """Kept of each of stdout and stderr; the rest is read and dropped."""
    workspace_mb: Count = 128
    tmp_mb: Count = 64
    """Of ``/tmp``, and again of ``/dev/shm``."""
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
    """A folder of the host that a sandbox sees, read-only; it may connect to sockets in it.

    Example:
        >>> Mount(host="/srv/agents", inside="/opt/agent").seen_in("process")
        '/srv/agents'
    """

    host: str
    inside: str

    def seen_in(self, backend: str) -> str:
        """Return the path by which code inside finds it; ``process`` sees the host's own."""
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
    """As the program left it; minus the signal's number if one killed it."""
    stdout: str
    """Bytes that are no UTF-8 are replaced."""
    stderr: str
    limit: LimitName = ""
    """The limit that ended something inside, if one did."""
    stdout_cut: bool = False
    """True if more was written than ``Limits.output_bytes``."""
    stderr_cut: bool = False
    wall_s: float
    cpu_s: float
    """Of the program and the children it waited for."""

    @property
    def timed_out(self) -> bool:
        """True if it and all it had started were killed because its time was up."""
        return self.limit == "wall"

    @property
    def is_cut(self) -> bool:
        """True if there would have been more output: over the cap, or the time was up."""
        return self.stdout_cut or self.stderr_cut or self.timed_out

    @property
    def ok(self) -> bool:
        """True if the program ended by itself with exit code 0."""
        return self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FileInfo:
    """One entry of a folder.

    Example:
        >>> FileInfo(path="src/main.py", size_bytes=12, kind="file").kind
        'file'
    """

    path: str
    """Relative to the workspace."""
    size_bytes: int
    kind: Literal["file", "folder", "link", "other"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A workspace's files, to be put back into this or any other sandbox; running programs are not part of it."""

    tar: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """One of :data:`GUARANTEES`: in force or not, and by what means or why not."""

    name: GuaranteeName
    in_force: bool
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Guarantees of a sandbox on this machine: those in force, and those not.

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

    def require(self, names: Iterable[str]) -> None:
        """Do nothing if all of ``names`` are in force.

        Raises:
            SandboxRefusedError: one is not; the message says which and why.
            UnknownNameError: there is no such guarantee.
        """
        wanted = frozenset(names)
        for name in sorted(wanted):
            require_known("guarantee", name, GUARANTEES)
        if missing := sorted(wanted - self.in_force):
            reasons = {guarantee.name: guarantee.how for guarantee in self.guarantees}
            text = "; ".join(f"{name} here: {reasons.get(name, 'not offered')}" for name in missing)  # type: ignore[call-overload]
            raise SandboxRefusedError(f"sandbox {self.backend!r} does not give {text}")


@runtime_checkable
class Sandbox(Protocol):
    """One place to run code in, with a workspace of its own.

    Calls may come from several threads; they are done one after the other. Paths are relative to the workspace or
    absolute inside it. What is sent into a sandbox (files, code, environment) can be read by whatever runs there
    later: answers and graders belong into a sandbox of their own.

    Every call may raise :class:`~agentgym.errors.SandboxError` (the infrastructure failed) and
    :class:`~agentgym.errors.ClosedError` (after ``close``).
    """

    @property
    def id(self) -> str:
        """A name that no other sandbox has."""
        ...

    @property
    def workspace(self) -> str:
        """The workspace's path as the code inside sees it."""
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
        """Run a shell line (a string) or a program (a sequence), and kill whatever it leaves running.

        Args:
            command: what to run; a string goes to ``sh -c``.
            stdin: all it can read; then the end of the file.
            timeout_s: at most ``Limits.wall_s``, which is also the default.
            env: in addition to a small fixed environment; nothing comes from the host's.
            cwd: the folder to start in.
            user: ``agent``, or ``grader``, whose processes and files the agent cannot touch; the latter needs the
                guarantee ``user``.

        Raises:
            SandboxFileError: there is no such folder ``cwd``.
            ConfigError: ``timeout_s`` is not in (0, ``Limits.wall_s``].
            SandboxRefusedError: ``user`` is not to be had here.
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
        """Run Python as ``python3 -c`` would, in a fork of an interpreter that has already started."""
        ...

    def read(self, path: str) -> bytes:
        """A file's content. Raises SandboxFileError: missing, a folder, outside, over ``Limits.file_mb``."""
        ...

    def write(self, path: str, data: str | bytes) -> None:
        """Write a whole file; makes the folders above it. Raises SandboxFileError."""
        ...

    def list(self, path: str = ".", *, recursive: bool = False) -> tuple[FileInfo, ...]:
        """A folder's entries, sorted by path. Raises SandboxFileError."""
        ...

    def snapshot(self) -> Snapshot:
        """The workspace's files as they are now."""
        ...

    def restore(self, snapshot: Snapshot) -> None:
        """Make the workspace's files what they were then, and nothing else."""
        ...

    def reset(self) -> None:
        """Make the sandbox as new: nothing runs, every place that can be written is empty."""
        ...

    def alive(self) -> bool:
        """True if it answers; where a call is under way, if its line to the inside is open."""
        ...

    def capabilities(self) -> Capabilities:
        """Capabilities that are in force here."""
        ...

    def close(self) -> None:
        """End it and remove what it used; a call under way fails; a second call does nothing."""
        ...

    def __enter__(self) -> Sandbox: ...

    def __exit__(self, *_: object) -> None: ...


@runtime_checkable
class HostsAgents(Protocol):
    """An environment in whose sandbox an agent's own program can run; after ``reset`` its attribute ``sandbox``."""

    def host_agent(self, mounts: Sequence[Mount], limits: Limits) -> None:
        """Work in sandboxes with these mounts and limits from the next reset on; grading has neither."""
        ...
