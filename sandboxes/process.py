"""The process sandbox: a separate process group with resource limits. **No isolation of files and network.**

Covered: a time-out kills the processes of a call. CPU time, memory and file size are limited per process. If the host
process is root, code runs as a separate unprivileged user, the number of its processes is limited, and a reset removes
its files in the host's shared folders. Without root, code runs in namespaces of its own for users, processes and System
V objects, if the kernel allows it: it can then signal only its own processes, and their number is limited.

Not covered: code can read and write all files that its user may, and use the network. Without root, that is the host
process's own user. Where the kernel refuses namespaces, too, code can stop and end every process of that user. Use it
for trusted code, for tests, and on machines without alternatives.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

from agentgym.errors import SandboxUnavailableError
from agentgym.sandbox import Capabilities, Guarantee, Limits
from agentgym.sandboxes import cgroups
from agentgym.sandboxes.host_worker import HostSandbox
from agentgym.sandboxes.launch import Inside, worker_command
from agentgym.sandboxes.run_folder import is_open_to_all, state_folder

_SHARED = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock")
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
_UNSHARE = ("unshare", "--user", "--map-current-user", "--pid", "--ipc", "--mount-proc", "--fork", "--kill-child", "--")
"""The worker becomes process 1 of new namespaces and keeps its user, so that files keep their owner."""
_PROBE_TIMEOUT_S = 10.0
_COUNTS_PER_NAMESPACE = (5, 14)
"""The first Linux release in which RLIMIT_NPROC counts the processes of a user namespace, not all of the user."""


class ProcessSandbox(HostSandbox):
    """A sandbox that is only a process with limits. The module docstring says what it does not cover.

    Args:
        limits: limits of the sandbox. ``has_network`` has no effect: code always has the network.
        require: required guarantees.

    Raises:
        SandboxRefusedError: a required guarantee is not in force here.

    Example:
        >>> with ProcessSandbox() as sandbox:
        ...     sandbox.write("greeting.txt", "hello")
        ...     sandbox.exec("cat greeting.txt").stdout
        'hello'
    """

    backend = "process"

    def __init__(self, limits: Limits | None = None, *, require: Iterable[str] = ()) -> None:
        here = process_capabilities()
        here.require(require)
        if "signals" not in here.in_force:
            warnings.warn(f"sandbox 'process': {here.how('signals')}", stacklevel=2)
        self._python = _reachable_python()
        if os.getuid() == 0 and not is_open_to_all(state := state_folder().resolve()):
            raise SandboxUnavailableError(
                f"the users that code runs as cannot enter {state}: set AGENTGYM_STATE to a folder that all users may "
                "enter (chmod o+x for it and for those above it)"
            )
        super().__init__(limits or Limits(), {"workspace": 0o755, "tmp": 0o1777})
        tmp = str(self._folder / "tmp")
        self._is_confined = not self._is_root and not why_unconfined()
        self._launch(
            Inside(
                sweep="user" if self._is_root else "namespace" if self._is_confined else "descendants",
                workspace=self.workspace,
                writable=(self.workspace, tmp),
                users=self._user_numbers,
                tmp=tmp,
                path=f"{os.path.dirname(self._python)}:{_SYSTEM_PATH}",
                limits_memory_per_process=True,
                limits_pids_per_user="pids" in here.in_force,
                shared=_SHARED if self._is_root else (),
            ),
            in_cgroup=self._is_root and not cgroups.why_not(),
            is_limited=False,
        )

    @property
    def workspace(self) -> str:
        """Path of the workspace, the same inside and on the host."""
        return str(self._folder / "workspace")

    def capabilities(self) -> Capabilities:
        """Return the guarantees on this machine."""
        return process_capabilities()

    def _command(self, inside: Inside) -> list[str]:
        command = worker_command(self._python, inside, self.limits)
        if self._is_confined:
            return [*_UNSHARE, *command]
        return command if self._cgroup is None else self._cgroup.entering(command)


def process_capabilities() -> Capabilities:
    """Return the guarantees of a process sandbox on this machine."""
    is_root, no_cgroups, unconfined = os.getuid() == 0, cgroups.why_not(), why_unconfined()
    own = "a user of its own without rights" if is_root else "it is the host's own user: no isolation"
    if is_root:
        time = "all processes of its user are killed" + ("" if no_cgroups else ", and of its control group")
        signals = own
    else:
        time = unconfined and "what forks quickly or kills the worker stays"
        time = time or "all processes of its namespace are killed"
        signals = unconfined and f"code can stop and end all processes of this user, since {unconfined}"
        signals = signals or "process namespace"
    limits_pids = is_root or (not unconfined and _release() >= _COUNTS_PER_NAMESPACE)
    return Capabilities(
        backend="process",
        guarantees=(
            Guarantee(name="filesystem", in_force=False, how="it sees the host's files: no isolation"),
            Guarantee(name="network", in_force=False, how="it has the host's network: no isolation"),
            Guarantee(name="cpu", in_force=False, how="processor time is limited per process, not its share"),
            Guarantee(name="memory", in_force=False, how="limited per process only (RLIMIT_AS)"),
            Guarantee(name="pids", in_force=limits_pids, how="RLIMIT_NPROC of its user" if limits_pids else own),
            Guarantee(name="time", in_force=not unconfined, how=time),
            Guarantee(name="signals", in_force=not unconfined, how=signals),
            Guarantee(name="user", in_force=is_root, how=own),
        ),
    )


@functools.cache
def why_unconfined() -> str:
    """Return an empty text if code cannot signal processes of the host, else the reason."""
    if os.getuid() == 0:  # code runs as users of its own
        return ""
    if shutil.which("unshare") is None:
        return "the program unshare is not installed (apt-get install util-linux)"
    try:
        done = subprocess.run(
            [*_UNSHARE, "true"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unshare does not run: {error}"
    said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
    return "" if done.returncode == 0 else f"this machine does not allow namespaces without root ({said})"


def _release() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])


def _reachable_python() -> str:
    """Return a Python that an unprivileged user can start, since the folder of the current one may be inaccessible."""
    found = [os.path.realpath(sys.executable), "/usr/bin/python3", shutil.which("python3") or ""]
    for python in found:
        if python and os.path.exists(python) and (os.getuid() != 0 or is_open_to_all(Path(python).resolve())):
            return python
    raise SandboxUnavailableError(f"no Python that other users may start (looked at {', '.join(filter(None, found))})")
