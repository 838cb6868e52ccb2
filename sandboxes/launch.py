"""The command that starts the worker inside a sandbox, with its sources and settings."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentgym.sandbox import Limits

MODULES = ("removal", "files", "job", "spare", "traces", "worker")
"""Modules of the worker, in the order of their imports."""
_PACKAGE = "agentgym.sandboxes.inside"
_BOOT = (
    "import json,sys,types\n"
    "for name,text in json.loads(sys.argv[2]):\n"
    "    module=types.ModuleType(name);sys.modules[name]=module;exec(compile(text,name,'exec'),module.__dict__)\n"
    "module.main()"
)
_MIB = 1 << 20

Sweep = Literal["namespace", "user", "descendants"]
"""Set of processes that the worker kills after a job: all others in its process namespace; all of the sandbox's users;
or, without own namespace and users, its descendants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Facts about the sandbox that the worker needs.

    Example:
        >>> inside = Inside(sweep="namespace", workspace="/workspace", writable=("/tmp",), users={"agent": None})
        >>> worker_command("python3", inside, Limits())[:3]
        ['python3', '-s', '-c']
    """

    sweep: Sweep
    workspace: str
    writable: tuple[str, ...]
    """All folders that jobs can write to, which a reset empties."""
    users: Mapping[str, tuple[int, int] | None]
    """User id and group id by name; None if the worker cannot change its user."""
    tmp: str = "/tmp"
    path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    limits_memory_per_process: bool = False
    limits_pids_per_user: bool = False
    shared: tuple[str, ...] = ()
    """World-writable folders of the host, from which files of jobs are removed, too."""

    def environment(self) -> dict[str, str]:
        """Return the environment variables of every job, the same on every machine."""
        return {
            "PATH": self.path,
            "HOME": self.tmp,
            "TMPDIR": self.tmp,
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",  # unbuffered, so that a time-out does not lose output
        }


def worker_command(python: str, inside: Inside, limits: Limits) -> list[str]:
    """Return the command that starts the worker with all its sources; nothing needs to be installed in the sandbox."""
    start = ["-s", "-c", _BOOT]
    # the worker uses the last argument to restart itself at a reset
    return [python, *start, _settings(inside, limits), _sources(), *start]


def _settings(inside: Inside, limits: Limits) -> str:
    rlimits = {
        "cpu": limits.cpu_s,
        "fsize": limits.file_mb * _MIB,
        "nofile": limits.num_open_files,
        "core": 0,
        "memlock": 0,
        "msgqueue": 0,
    }
    if inside.limits_memory_per_process:
        rlimits["as"] = limits.memory_mb * _MIB
    if inside.limits_pids_per_user:
        rlimits["nproc"] = limits.num_pids
    return json.dumps(
        {
            "sweep": inside.sweep,
            "workspace": inside.workspace,
            "writable": inside.writable,
            "shared": inside.shared,
            "users": dict(inside.users),
            "env": inside.environment(),
            "rlimits": rlimits,
        }
    )


def _sources() -> str:
    folder = importlib.resources.files(_PACKAGE)
    names: Sequence[str] = MODULES
    return json.dumps([(f"{_PACKAGE}.{name}", (folder / f"{name}.py").read_text(encoding="utf-8")) for name in names])
