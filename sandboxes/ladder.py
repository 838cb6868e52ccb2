"""The ladder of sandboxes, from the most to the least that holds: docker, namespaces, process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from agentgym.errors import SandboxError, SandboxRefusedError, UsageError, unknown_name
from agentgym.sandbox import Capabilities, Limits, Mount, Sandbox
from agentgym.sandboxes import docker_engine, namespaces
from agentgym.sandboxes.docker import DockerSandbox, docker_capabilities
from agentgym.sandboxes.images import DEFAULT_IMAGE
from agentgym.sandboxes.namespaces import NamespaceSandbox, namespace_capabilities
from agentgym.sandboxes.process import ProcessSandbox, process_capabilities

Backend = Literal["docker", "namespaces", "process"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One kind of sandbox on this machine."""

    backend: Backend
    why_not: str
    """Empty if it can be opened here, else the reason and what to do."""
    capabilities: Capabilities | None
    """What would be in force; None if it cannot be opened."""

    def what_holds(self) -> str:
        """In a line: the guarantees that hold and those that do not, or why it cannot be opened."""
        if self.capabilities is None:
            return self.why_not
        lacking = [guarantee.name for guarantee in self.capabilities.guarantees if not guarantee.in_force]
        holds = ", ".join(sorted(self.capabilities.in_force)) or "nothing"
        return f"holds {holds}" + (f"; not {', '.join(lacking)}" if lacking else "")


def open_sandbox(
    backend: Backend | Literal["auto"] = "auto",
    *,
    limits: Limits | None = None,
    require: Iterable[str] = (),
    image: str = DEFAULT_IMAGE,
    mounts: Sequence[Mount] = (),
) -> Sandbox:
    """Open a sandbox: of one kind, or of the first on the ladder that works here and gives what is required.

    Args:
        backend: ``auto`` takes ``docker`` where an engine answers and has the image, else ``namespaces``; it takes
            ``process``, which isolates nothing, only where ``require`` names a guarantee and ``process`` gives it.
        limits: what it may use.
        require: guarantees (:data:`agentgym.sandbox.GUARANTEES`) without which there is to be no sandbox.
        image: for ``docker``.
        mounts: folders of the host that it sees; ``process`` sees all of them.

    Raises:
        UnknownNameError: there is no such backend or guarantee.
        SandboxRefusedError: what is required is not to be had here; says why for each rung.
        SandboxError: the backend that was named does not work here.

    Example:
        >>> with open_sandbox("process", limits=Limits(wall_s=5)) as sandbox:
        ...     sandbox.run_python("print(1)").stdout
        '1\\n'
    """
    require = frozenset(require)
    if backend != "auto":
        return _open(backend, limits, require, image, mounts)
    reasons = []
    for rung in BACKENDS:
        if rung == "process" and not require:
            reasons.append("process: isolates nothing, so it has to be asked for by name")
            continue
        try:
            return _open(rung, limits, require, image, mounts)
        except (SandboxError, UsageError) as error:
            reasons.append(f"{rung}: {error}")
    raise SandboxRefusedError("no sandbox here gives what is required; " + "; ".join(reasons))


def ladder() -> tuple[Rung, ...]:
    """Return what this machine offers; starts nothing that stays."""
    looks: dict[Backend, tuple[Callable[[], str], Callable[[], Capabilities]]] = {
        "docker": (partial(docker_engine.why_not, DEFAULT_IMAGE), docker_capabilities),
        "namespaces": (namespaces.why_not, namespace_capabilities),
        "process": (str, process_capabilities),
    }
    rungs = []
    for backend, (why_not, capabilities) in looks.items():
        reason = why_not()
        rungs.append(Rung(backend=backend, why_not=reason, capabilities=None if reason else capabilities()))
    return tuple(rungs)


def _open(
    backend: Backend, limits: Limits | None, require: Iterable[str], image: str, mounts: Sequence[Mount]
) -> Sandbox:
    if backend == "docker":
        return DockerSandbox(image, limits, require=require, mounts=mounts)
    if backend == "namespaces":
        return NamespaceSandbox(limits, require=require, mounts=mounts)
    if backend == "process":
        return ProcessSandbox(limits, require=require)
    raise unknown_name("sandbox", backend, BACKENDS)
