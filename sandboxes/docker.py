"""The docker sandbox: a container without network, privileges, swap or writable file system.

Covered: all seven guarantees, if the engine's kernel supports them (:func:`docker_capabilities` asks it). The worker is
process 1 and root with three capabilities (change user, change group, kill). Code runs as a user without any. All
writable places lie in memory, with their own size limits. Output is not logged to disk.

Not covered: the kernel is shared with the host, protected by Docker's filter of system calls. A bug in the kernel may
allow an escape. Access to the engine's socket means control of the host: never mount the socket into a sandbox.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from agentgym.errors import SandboxError, SandboxUnavailableError
from agentgym.sandbox import Capabilities, Guarantee, GuaranteeName, Limits, Mount
from agentgym.sandboxes.docker_engine import docker_errors, engine, engine_facts, is_not_found
from agentgym.sandboxes.images import DEFAULT_IMAGE
from agentgym.sandboxes.launch import Inside, worker_command
from agentgym.sandboxes.owner import current_owner, next_sandbox_id
from agentgym.sandboxes.reaper import reap_docker_once
from agentgym.sandboxes.stream import Stream
from agentgym.sandboxes.worker_sandbox import WorkerSandbox

if TYPE_CHECKING:
    from docker.models.containers import Container

WORKSPACE = "/workspace"
_AGENT, _GRADER = (1000, 1000), (1001, 1000)
_RIGHTS_OF_THE_WORKER = ["SETUID", "SETGID", "KILL"]
_NUM_FILES = 1 << 16
_MIB = 1 << 20


class DockerSandbox(WorkerSandbox):
    """A sandbox in a Docker container. The module docstring says what it does not cover.

    Args:
        image: an image with Python 3.9 or later; nothing else is required.
        limits: limits of the sandbox.
        require: required guarantees.
        mounts: folders of the engine's host that code inside can read.

    Raises:
        MissingExtraError: the package ``docker`` is not installed.
        SandboxUnavailableError: no engine answers.
        SandboxImageError: the image is missing or has no Python.
        SandboxDiskFullError: the engine's disk is full.
        SandboxRefusedError: a required guarantee is not in force here.
    """

    backend = "docker"

    def __init__(
        self,
        image: str = DEFAULT_IMAGE,
        limits: Limits | None = None,
        *,
        require: Iterable[str] = (),
        mounts: Sequence[Mount] = (),
    ) -> None:
        super().__init__(next_sandbox_id(), limits or Limits(), ("agent", "grader"))
        self.image, self._mounts = image, tuple(mounts)
        self._container: Container | None = None
        self._capabilities = docker_capabilities(self.limits.has_network)
        self._capabilities.require(require)
        reap_docker_once()
        with docker_errors(f"open a sandbox of {image}", image):
            volumes = (engine().images.get(image).attrs["Config"] or {}).get("Volumes") or {}
            self._container = engine().containers.create(image, **self._settings(tuple(volumes)))
        try:
            with docker_errors(f"start a sandbox of {image}", image):
                stream = self._attached(self._container)
                self._container.start()
            self._start(stream)
        except BaseException:
            self._end_once()
            raise

    @property
    def workspace(self) -> str:
        """Path of the workspace inside."""
        return WORKSPACE

    def capabilities(self) -> Capabilities:
        """Return the guarantees on this machine."""
        return self._capabilities

    def _settings(self, volumes: tuple[str, ...]) -> Mapping[str, object]:
        limits = self.limits
        sizes = {WORKSPACE: limits.workspace_mb, "/tmp": limits.tmp_mb}
        # a volume declared by the image would be writable space on the host's disk without a limit
        sizes |= {place.rstrip("/"): limits.tmp_mb for place in volumes if place.rstrip("/") not in sizes}
        tmpfs = {
            place: f"rw,nosuid,nodev,exec,size={size_mb * _MIB},nr_inodes={_NUM_FILES},"
            + (f"uid={_AGENT[0]},gid={_AGENT[1]},mode=755" if place == WORKSPACE else "mode=1777")
            for place, size_mb in sizes.items()
        }
        inside = Inside(
            sweep="namespace",
            workspace=WORKSPACE,
            writable=(*tmpfs, "/dev/shm"),
            users={"agent": _AGENT, "grader": _GRADER},
        )
        return {
            "entrypoint": worker_command("python3", inside, limits),
            "command": [],
            "name": self.id,
            "labels": {**current_owner().labels(), "agentgym.sandbox": self.id},
            "environment": inside.environment(),
            "user": "0:0",
            "working_dir": "/",
            "hostname": "sandbox",
            "stdin_open": True,  # the connection closes when this process ends, which ends the worker
            "auto_remove": True,  # and the end of the worker removes the container
            "network_mode": "bridge" if limits.has_network else "none",
            "ipc_mode": "private",
            "read_only": True,
            "tmpfs": tmpfs,
            "mounts": [
                {"Type": "bind", "Source": one.host, "Target": one.inside, "ReadOnly": True} for one in self._mounts
            ],
            "shm_size": limits.tmp_mb * _MIB,
            "mem_limit": limits.memory_mb * _MIB,
            "memswap_limit": limits.memory_mb * _MIB,  # this limit is of memory and swap together, so there is no swap
            "pids_limit": limits.num_pids,
            "nano_cpus": int(limits.num_cpus * 1e9),
            "cap_drop": ["ALL"],
            "cap_add": _RIGHTS_OF_THE_WORKER,
            "security_opt": ["no-new-privileges"],
            "log_config": {"Type": "none", "Config": {}},
            "healthcheck": {"test": ["NONE"]},
        }

    def _attached(self, container: Container) -> Stream:
        wanted = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        line = container.attach_socket(params=wanted)
        sock = getattr(line, "_sock", line)
        if not isinstance(sock, socket.socket) or hasattr(sock, "pending"):
            raise SandboxError("the engine is reached over TLS, which is not supported; forward its socket by ssh")

        def close() -> None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            line.close()
            sock.close()

        return Stream(sock.fileno(), sock.fileno(), close, is_docker=True)

    def _end(self) -> None:
        if self._container is not None:
            try:
                self._container.remove(force=True, v=True)
            # the engine removes the container when the worker ends; otherwise it is reaped later
            except Exception as error:
                if not is_not_found(error):
                    with suppress(SandboxUnavailableError), docker_errors("remove a sandbox"):
                        raise

    def _blame(self) -> str:
        if self._container is None:
            return ""
        # the engine may report the end of the container a moment later
        since, until = int(self._answered_s), int(time.time()) + 1
        wanted = {"container": self._container.id, "event": "oom"}
        with suppress(Exception):
            if next(iter(engine().events(since=since, until=until, filters=wanted, decode=True)), None) is not None:
                return "it ran out of memory"
        return ""

    def _post_mortem(self) -> str:
        words = self._stream.stray.decode(errors="replace").strip()[-500:] if self._stream is not None else ""
        try:
            with docker_errors("look after a sandbox"):
                engine().ping()
        except SandboxUnavailableError as error:
            return str(error)
        return f"its container has ended{': ' + words if words else '; it was removed, or killed from outside'}"


def docker_capabilities(has_network: bool = False) -> Capabilities:
    """Return the guarantees of a docker sandbox on the current engine."""
    facts = engine_facts()
    swap = "" if facts.get("SwapLimit") else "; swap cannot be limited"
    asked: dict[GuaranteeName, tuple[bool, str]] = {
        "filesystem": (True, "image, read-only; the rest in memory"),
        "network": (not has_network, "it was given the bridge" if has_network else "none"),
        "cpu": (bool(facts.get("CpuCfsQuota")), "control group"),
        "memory": (bool(facts.get("MemoryLimit")) and not swap, "control group, no swap" + swap),
        "pids": (bool(facts.get("PidsLimit")), "control group"),
        "time": (True, "all processes of its namespace are killed"),
        "signals": (True, "process namespace"),
        "user": (True, "a user of its own without rights, apart from the worker's"),
    }
    return Capabilities(
        backend="docker",
        guarantees=tuple(
            Guarantee(name=name, in_force=is_so, how=how if is_so else f"not from this engine ({how})")
            for name, (is_so, how) in asked.items()
        ),
    )
