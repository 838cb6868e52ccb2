"""The namespaces sandbox: bubblewrap with separate namespaces for files, processes, network, IPC and host name.

Covered: Code sees only the host's programs and libraries (``/usr``, read-only) and the Python in use. It does not see
installed Python packages, since agentgym may be among them, and with it the answers to generated tasks. There is no
network. The worker is process 1, so that it can kill all other processes at once. The workspace lies in memory, with
its own size limit. As root, control groups limit memory, processes and CPUs of all together, and code runs as a
separate user. Without root, code and worker are the same user, so code can stop the worker (the sandbox then reports
that it is dead), and memory is limited only per process.

Not covered: the kernel is shared with the host without a filter of system calls, so a bug in the kernel may allow an
escape. Everything in ``/usr`` can be read.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from agentgym import errors
from agentgym.errors import SandboxUnavailableError
from agentgym.sandbox import Capabilities, Guarantee, Limits, Mount
from agentgym.sandboxes import cgroups
from agentgym.sandboxes.host_worker import HostSandbox
from agentgym.sandboxes.launch import Inside, worker_command

WORKSPACE = "/workspace"
_OF_AN_INTERPRETER = ("bin", "lib", "lib64", "ssl")
_MIB = 1 << 20
_PROBE_TIMEOUT_S = 10.0
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types")
_RIGHTS_OF_THE_WORKER = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_CHOWN")


class NamespaceSandbox(HostSandbox):
    """A sandbox of Linux namespaces, made by bubblewrap. The module docstring says what it does not cover.

    Args:
        limits: limits of the sandbox.
        require: required guarantees.
        mounts: further folders of the host that code can read, such as a virtual environment.

    Raises:
        SandboxUnavailableError: bubblewrap is not installed, or namespaces are not allowed here.
        SandboxRefusedError: a required guarantee is not in force here.
    """

    backend = "namespaces"

    def __init__(
        self, limits: Limits | None = None, *, require: Iterable[str] = (), mounts: Sequence[Mount] = ()
    ) -> None:
        limits = limits or Limits()
        if reason := why_not():
            raise SandboxUnavailableError(reason)
        namespace_capabilities(limits.has_network).require(require)
        super().__init__(limits, {"etc": 0o755})
        self._mounts = tuple(mounts)
        in_cgroup = not cgroups.why_not()
        self._launch(
            Inside(
                sweep="namespace",
                workspace=WORKSPACE,
                writable=(WORKSPACE, "/tmp", "/dev/shm"),
                users=self._user_numbers,
                path=f"{os.path.dirname(_python())}:/usr/local/bin:/usr/bin:/bin",
                limits_memory_per_process=not in_cgroup,
                limits_pids_per_user=not in_cgroup,
            ),
            in_cgroup=in_cgroup,
        )

    @property
    def workspace(self) -> str:
        """Path of the workspace inside."""
        return WORKSPACE

    def capabilities(self) -> Capabilities:
        """Return the guarantees on this machine."""
        return namespace_capabilities(self.limits.has_network)

    def _command(self, inside: Inside) -> list[str]:
        command = [*self._bubblewrap(), "--", *worker_command(_python(), inside, self.limits)]
        return command if self._cgroup is None else self._cgroup.entering(command)

    def _bubblewrap(self) -> list[str]:
        limits = self.limits
        sizes = {WORKSPACE: limits.workspace_mb, "/tmp": limits.tmp_mb, "/dev/shm": limits.tmp_mb}
        command = ["bwrap", "--unshare-pid", "--as-pid-1", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        command += ["--hostname", "sandbox", "--new-session", "--chdir", "/"]
        if not limits.has_network:
            command += ["--unshare-net"]
        if self._is_root:
            command += ["--cap-drop", "ALL", *(f for right in _RIGHTS_OF_THE_WORKER for f in ("--cap-add", right))]
        else:
            command += ["--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"]
        command += self._seen_of_the_host()
        command += ["--proc", "/proc", "--dev", "/dev"]
        for place, size_mb in sizes.items():
            mode = "0755" if place == WORKSPACE else "1777"
            command += ["--perms", mode, "--size", str(size_mb * _MIB), "--tmpfs", place]
        if self._cgroup is not None:  # the worker reads there how many processes were killed because of memory
            name = "memory" if len(self._cgroup.paths) > 1 else ""
            command += ["--ro-bind", self._cgroup.memory_path, f"/sys/fs/cgroup/{name}"]
        return [*command, "--remount-ro", "/dev", "--remount-ro", "/"]

    def _seen_of_the_host(self) -> list[str]:
        command = []
        for folder in ("/usr", *_python_folders()):
            command += _seen(folder)
        for folder in _installed_packages():
            command += ["--perms", "0555", "--tmpfs", folder, "--remount-ro", folder]
        for mount in self._mounts:
            command += _seen(mount.host, mount.inside)
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            if Path("/", name).is_symlink():
                command += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
            elif Path("/", name).is_dir():
                command += ["--ro-bind", f"/{name}", f"/{name}"]
        command += ["--perms", "0755", "--dir", "/etc"]  # otherwise bubblewrap makes it accessible to root only
        for name in _ETC:
            command += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        for name, text in self._made_files().items():
            path = self._folder / "etc" / name
            path.write_text(text)
            path.chmod(0o644)
            command += ["--ro-bind", str(path), f"/etc/{name}"]
        if self.limits.has_network:
            command += ["--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
        return command

    def _made_files(self) -> dict[str, str]:
        uids = {"agent": 1000}
        if self._numbers is not None:
            uids = {"agent": self._numbers.agent, "grader": self._numbers.grader}
        lines = [f"{name}:x:{uid}:{uids['agent']}::/tmp:/bin/sh\n" for name, uid in uids.items()]
        return {
            "passwd": "".join(["root:x:0:0::/:/bin/false\n", *lines]),
            "group": f"root:x:0:\nagent:x:{uids['agent']}:\n",
            "hosts": "127.0.0.1 localhost\n::1 localhost\n",
            "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        }


def namespace_capabilities(has_network: bool = False) -> Capabilities:
    """Return the guarantees of a namespaces sandbox on this machine."""
    is_root, no_cgroups = os.getuid() == 0, cgroups.why_not()
    lacking = f"per process only: {no_cgroups}"
    user = "a user of its own without rights, apart from the worker's"
    return Capabilities(
        backend="namespaces",
        guarantees=(
            Guarantee(name="filesystem", in_force=True, how="mount namespace; of the host only programs, read-only"),
            Guarantee(
                name="network",
                in_force=not has_network,
                how="it was given the host's" if has_network else "network namespace without a way out",
            ),
            Guarantee(name="cpu", in_force=not no_cgroups, how=no_cgroups or "control group"),
            Guarantee(name="memory", in_force=not no_cgroups, how=lacking if no_cgroups else "control group, no swap"),
            Guarantee(name="pids", in_force=True, how="RLIMIT_NPROC of its user" if no_cgroups else "control group"),
            Guarantee(name="time", in_force=True, how="all processes of its namespace are killed"),
            Guarantee(name="signals", in_force=True, how="process namespace"),
            Guarantee(
                name="user",
                in_force=is_root,
                how=user if is_root else "without rights, but the same as the worker's: it can stop the sandbox",
            ),
        ),
    )


@functools.cache
def why_not() -> str:
    """Return an empty text if bubblewrap works here, else the reason and what to do."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed: apt-get install bubblewrap"
    command = ["bwrap", "--ro-bind", "/", "/", "--unshare-all", "--proc", "/proc", "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not run: {error}"
    if done.returncode == 0:
        return ""
    return f"bubblewrap is not allowed to make namespaces here ({done.stderr.strip()}); as root it is in most places"


def _python() -> str:
    return os.path.realpath(sys.executable)


def _seen(folder: str, inside: str = "") -> list[str]:
    """Return bubblewrap's arguments that mount a folder of the host read-only, at the same path or at ``inside``."""
    inside = inside or folder
    command = []
    # otherwise parents keep the modes of the host, where /root is not accessible
    for above in reversed(Path(inside).parents[:-1]):
        command += ["--perms", "0755", "--dir", str(above)]
    return [*command, "--ro-bind", folder, inside]


def _python_folders() -> tuple[str, ...]:
    """Return the folders that the Python in use needs, except those below /usr."""
    prefix = Path(sys.base_prefix).resolve()
    if prefix.is_relative_to("/usr"):
        return ()
    return tuple(str(prefix / name) for name in _OF_AN_INTERPRETER if (prefix / name).is_dir())


def _installed_packages() -> tuple[str, ...]:
    """Return the visible folders of installed packages, which must be hidden; agentgym's is one of them."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefixes = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix, "/usr", "/usr/local")}
    places = [prefix / "lib" / python for prefix in prefixes for python in (version, "python3")]
    found = {place / name for place in places for name in ("site-packages", "dist-packages")}
    found |= {Path(folder) for folder in sys.path if folder.endswith(("site-packages", "dist-packages"))}
    found.add(Path(errors.__file__).parents[1])
    resolved = {folder.resolve() for folder in found if folder.is_dir()}
    seen = [Path("/usr"), *map(Path, _python_folders())]
    return tuple(sorted(str(one) for one in resolved if any(one.is_relative_to(folder) for folder in seen)))
