"""Control groups, version 1 and 2: caps for all processes of a sandbox together.

Needs the right to make groups below the root of the hierarchy, so mostly root. Where that is missing
:func:`why_not` says so, and the sandbox does with limits per process.
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
    """One group (in version 1: one for each controller) with the limits of one sandbox, or none."""

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
        """A command that enters the group and then becomes ``command``."""
        enter = " && ".join(f"echo $$ > '{path}/cgroup.procs'" for path in self.paths)
        return ["sh", "-c", f'{enter} && exec "$@"', "sh", *command]

    def num_oom_kills(self) -> int:
        """Return how many processes of the group the kernel has ended for want of memory."""
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError):
                lines = Path(self.memory_path, name).read_text().splitlines()
                return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
        return 0

    @property
    def memory_path(self) -> str:
        """The folder that counts memory."""
        return self.paths[0]


@functools.cache
def why_not() -> str:
    """Empty if control groups can be made here, else the reason."""
    try:
        for parent in _parents():
            probe = parent / f"probe-{os.getpid()}-{time.monotonic_ns()}"
            probe.mkdir()
            probe.rmdir()
    except OSError as error:
        return f"no control groups here ({error.filename}: {error.strerror})"
    return ""


def remove(paths: tuple[str, ...]) -> None:
    """Kill what is in these groups, then remove them; what is gone already is fine."""
    deadline = time.monotonic() + _PATIENCE_S
    for path in paths:  # at one stroke, or at least without new ones: what forks faster than it is read gets away
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
    """Return True if a path is one where :class:`Cgroup` makes groups."""
    parent = Path(path).parent
    return parent.name == _PARENT and parent.is_relative_to(_ROOT) and ".." not in Path(path).parts


@functools.cache
def _is_version_2() -> bool:
    return (_ROOT / "cgroup.controllers").is_file()


def _parents() -> tuple[Path, ...]:
    """Folders to make groups in: memory first; raises OSError where that is not allowed."""
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
        if file.exists():  # version 1: in the folder of its controller alone; and no swap, no limit on it
            file.write_text(value)
