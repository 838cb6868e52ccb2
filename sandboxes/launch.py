"""Start of the worker inside a sandbox: its sources, its settings, and the command that holds both."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentgym.sandbox import Limits

MODULES = ("removal", "files", "job", "traces", "worker")
"""In the order of their imports."""
_PACKAGE = "agentgym.sandboxes.inside"
_BOOT = (
    "import json,sys,types\n"
    "for name,text in json.loads(sys.argv[2]):\n"
    "    module=types.ModuleType(name);sys.modules[name]=module;exec(compile(text,name,'exec'),module.__dict__)\n"
    "module.main()"
)
_MIB = 1 << 20

Sweep = Literal["namespace", "user", "descendants"]
"""How the worker kills what a job left: everything else in its process namespace; everything of the sandbox's users;
or, where neither is its own, the processes it finds below itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Facts that the worker must know of the sandbox that it is in.

    Example:
        >>> inside = Inside(sweep="namespace", workspace="/workspace", writable=("/tmp",), users={"agent": None})
        >>> worker_command("python3", inside, Limits())[:3]
        ['python3', '-s', '-c']
    """

    sweep: Sweep
    workspace: str
    writable: tuple[str, ...]
    """Every folder that jobs can write to, in which everything below goes at a reset."""
    users: Mapping[str, tuple[int, int] | None]
    """Numbers of user and group by name; None where the worker cannot change its user."""
    tmp: str = "/tmp"
    path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    limits_memory_per_process: bool = False
    limits_pids_per_user: bool = False
    shared: tuple[str, ...] = ()
    """Folders of the host that everybody may write to; what jobs leave there goes, too."""

    def environment(self) -> dict[str, str]:
        """The environment of every job, the same on every machine."""
        return {
            "PATH": self.path,
            "HOME": self.tmp,
            "TMPDIR": self.tmp,
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",  # or a time-out loses what was printed
        }


def worker_command(python: str, inside: Inside, limits: Limits) -> list[str]:
    """The command that starts the worker with everything it needs; there is nothing to install in the sandbox."""
    start = ["-s", "-c", _BOOT]
    return [python, *start, _settings(inside, limits), _sources(), *start]  # the last for its fresh start at a reset


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
