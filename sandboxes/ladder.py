"""The kinds of sandbox, from the strongest to the weakest isolation: docker, namespaces, process."""

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
_BY_NAME = (
    "process isolates nothing, so it has to be asked for by name (sandbox=process, or sandbox='process' in Python)"
)
BACKENDS: tuple[Backend, ...] = get_args(Backend)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One kind of sandbox on this machine."""

    backend: Backend
    why_not: str
    """Empty if it works on this machine, else the reason and what to do."""
    capabilities: Capabilities | None
    """Guarantees on this machine; None if it does not work."""

    def what_holds(self) -> str:
        """Return a line with the guarantees that hold and those that do not, or the reason why it does not work."""
        if self.capabilities is None:
            return self.why_not
        lacking = [guarantee.name for guarantee in self.capabilities.guarantees if not guarantee.in_force]
        holds = ", ".join(sorted(self.capabilities.in_force)) or "nothing"
        warning = "" if "signals" in self.capabilities.in_force else f"; {self.capabilities.how('signals')}"
        return f"holds {holds}" + (f"; not {', '.join(lacking)}" if lacking else "") + warning


def open_sandbox(
    backend: Backend | Literal["auto"] = "auto",
    *,
    limits: Limits | None = None,
    require: Iterable[str] = (),
    image: str = DEFAULT_IMAGE,
    mounts: Sequence[Mount] = (),
) -> Sandbox:
    """Open a sandbox of one kind, or of the strongest kind that works here and gives the required guarantees.

    Args:
        backend: ``auto`` takes ``docker`` if an engine answers and has the image, else ``namespaces``. It takes
            ``process``, which isolates nothing, only if ``require`` names guarantees that ``process`` gives.
        limits: limits of the sandbox.
        require: required guarantees (:data:`agentgym.sandbox.GUARANTEES`).
        image: image for ``docker``.
        mounts: folders of the host that code inside can read; ``process`` sees all folders.

    Raises:
        UnknownNameError: there is no such backend or guarantee.
        SandboxRefusedError: no kind gives the required guarantees here; the message gives the reason for each.
        SandboxError: the named backend does not work here.

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
            reasons.append(_BY_NAME)
            continue
        try:
            return _open(rung, limits, require, image, mounts)
        except (SandboxError, UsageError) as error:
            reasons.append(f"{rung}: {error}")
    raise SandboxRefusedError("no sandbox here gives what is required; " + "; ".join(reasons))


def ladder() -> tuple[Rung, ...]:
    """Return the kinds of sandbox and their state on this machine. Leaves nothing running."""
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


def why_no_isolation() -> str:
    """Return an empty text if a sandbox that isolates works here, else the reasons and what to do."""
    reasons = [namespaces.why_not(), docker_engine.why_not(DEFAULT_IMAGE)]
    return "" if not all(reasons) else f"no sandbox here isolates code: {'; '.join(reasons)}; {_BY_NAME}"


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
