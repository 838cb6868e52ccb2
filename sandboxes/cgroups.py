"""Control groups (cgroups), version 1 and 2: limits for all processes of a sandbox together.

They need the right to create groups below the root of the hierarchy, which usually only root has. Without it,
:func:`why_not` returns the reason, and the sandbox uses limits per process.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from agentgym.errors import SandboxError
from agentgym.sandbox import Limits

_ROOT = Path("/sys/fs/cgroup")
_PARENT = "agentgym"
_CONTROLLERS = ("memory", "pids", "cpu")
_PERIOD_US = 100_000
_PATIENCE_S = 5.0
_MIB = 1 << 20


class Cgroup:
    """The control group of one sandbox (in version 1, one group per controller), with or without limits."""

    def __init__(self, name: str, limits: Limits | None) -> None:
        parents = _parents()
        self.paths = tuple(str(parent / name) for parent in parents)
        try:
            for path in self.paths:
                os.mkdir(path)
            if limits is not None:
                for path in self.paths:
                    _limit(Path(path), limits)
        except OSError as error:
            remove(self.paths)
            raise SandboxError(f"no control group {error.filename}: {error.strerror}") from error

    def entering(self, command: list[str]) -> list[str]:
        """Return a command that enters the group and then executes ``command``."""
        enter = " && ".join(f"echo $$ > '{path}/cgroup.procs'" for path in self.paths)
        return ["sh", "-c", f'{enter} && exec "$@"', "sh", *command]

    def num_oom_kills(self) -> int:
        """Return the number of the group's processes that the kernel has killed because of memory."""
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError):
                lines = Path(self.memory_path, name).read_text().splitlines()
                return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
        return 0

    @property
    def memory_path(self) -> str:
        """Folder of the memory controller."""
        return self.paths[0]


@functools.cache
def why_not() -> str:
    """Return an empty text if control groups can be created here, else the reason."""
    try:
        for parent in _parents():
            probe = parent / f"probe-{os.getpid()}-{time.monotonic_ns()}"
            probe.mkdir()
            probe.rmdir()
    except OSError as error:
        return f"no control groups here ({error.filename}: {error.strerror})"
    return ""


def remove(paths: tuple[str, ...]) -> None:
    """Kill all processes in these groups and remove the groups. Missing groups are ignored."""
    deadline = time.monotonic() + _PATIENCE_S
    # kill all at once, or at least freeze first: a process that forks faster than the list is read would escape
    for path in paths:
        for name, value in (("cgroup.kill", "1"), ("pids.max", "0")):
            with suppress(OSError):
                fd = os.open(os.path.join(path, name), os.O_WRONLY)
                os.write(fd, value.encode())
                os.close(fd)
    for path in paths:
        while os.path.isdir(path) and time.monotonic() < deadline:
            with suppress(OSError):
                for pid in Path(path, "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            with suppress(OSError):
                os.rmdir(path)
                break
            time.sleep(0.002)


def is_group(path: str) -> bool:
    """Return True if :class:`Cgroup` creates groups at a path."""
    parent = Path(path).parent
    return parent.name == _PARENT and parent.is_relative_to(_ROOT) and ".." not in Path(path).parts


@functools.cache
def _is_version_2() -> bool:
    return (_ROOT / "cgroup.controllers").is_file()


def _parents() -> tuple[Path, ...]:
    """Return the folders in which to create groups, memory first. Raises OSError if that is not allowed."""
    if _is_version_2():
        for folder in (_ROOT, _ROOT / _PARENT):
            folder.mkdir(exist_ok=True)
            (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))
        return (_ROOT / _PARENT,)
    folders = tuple(_ROOT / name / _PARENT for name in _CONTROLLERS)
    for folder in folders:
        folder.mkdir(exist_ok=True)
    return folders


def _limit(path: Path, limits: Limits) -> None:
    memory, quota = limits.memory_mb * _MIB, int(limits.num_cpus * _PERIOD_US)
    if _is_version_2():
        values = {
            "memory.max": str(memory),
            "memory.swap.max": "0",
            "pids.max": str(limits.num_pids),
            "cpu.max": f"{quota} {_PERIOD_US}",
        }
    else:
        values = {
            "memory.limit_in_bytes": str(memory),
            "memory.memsw.limit_in_bytes": str(memory),
            "pids.max": str(limits.num_pids),
            "cpu.cfs_period_us": str(_PERIOD_US),
            "cpu.cfs_quota_us": str(quota),
        }
    for name, value in values.items():
        file = path / name
        # in version 1, a limit exists only in the folder of its controller, and the swap limit only if swap is on
        if file.exists():
            file.write_text(value)
