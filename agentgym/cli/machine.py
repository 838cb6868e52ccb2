"""Facts about this machine, each with the command that would change it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agentgym import entry_points
from agentgym.errors import EnvError, UsageError
from agentgym.installation import DISTRIBUTION, install_command, stranger
from agentgym.registry import command_in, entries

_PROBE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One feature that the machine has or lacks."""

    name: str
    ok: bool
    detail: str
    fix: str | None = None
    """Command that would add the feature; None if nothing needs to be done."""


def facts() -> tuple[Fact, ...]:
    """Return the features of the machine. Runs a few short programs; the slowest one asks the Docker daemon."""
    other = stranger()
    return (
        Fact(
            name="agentgym",
            ok=not other,
            detail=other or f"{DISTRIBUTION} {_version(DISTRIBUTION) or 'from its folder'}",
        ),
        Fact(name="Python", ok=True, detail=f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Fact(name="CPU", ok=True, detail=f"{num_cores()} cores usable of {os.cpu_count()}"),
        Fact(name="memory", ok=True, detail=_memory()),
        _gpu(),
        _torch(),
        _package("transformers", install_command("train")),
        _docker(),
        _bubblewrap(),
        _chromium(),
        _vllm(),
        _ray(),
        _program("Java", ("java",), "apt-get install default-jre-headless", "-version"),
    )


def engines(found: Sequence[Fact]) -> tuple[Fact, ...]:
    """Return the engines and whether they work with these facts."""
    by_name = {fact.name: fact for fact in found}
    has_torch = by_name["torch"].ok and by_name["transformers"].ok
    on = "GPU" if "CUDA" in by_name["torch"].detail else "CPU"
    return (
        Fact(
            name="torch",
            ok=has_torch,
            detail=f"embedded, on the {on}; trains and evaluates" if has_torch else "needs torch and transformers",
            fix=None if has_torch else install_command("train"),
        ),
        Fact(
            name="vllm",
            ok=by_name["vllm"].ok,
            detail=(
                "servers over HTTP: agentgym serve-model MODEL, then engine.kind=vllm"
                if by_name["vllm"].ok
                else "no server can be started here; those of other machines can be used (engine.urls)"
            ),
            fix=by_name["vllm"].fix,
        ),
    )


def sandboxes() -> tuple[Fact, ...]:
    """Return the kinds of sandbox that can be opened, with their guarantees, and programs that they could use."""
    from agentgym.sandboxes.ladder import ladder

    facts = [
        Fact(name=rung.backend, ok=not rung.why_not, detail=rung.what_holds(), fix=command_in(rung.why_not) or None)
        for rung in ladder()
    ]
    return (*facts, _program("mmdebstrap", ("mmdebstrap",), "apt-get install mmdebstrap"))


def environments() -> tuple[Fact, ...]:
    """Return the registered environments and the requirements that are missing."""
    lacking = {entry: entry.lacks() for entry in entries()}
    return tuple(
        Fact(
            name=entry.id,
            ok=not why_not,
            detail=entry.summary + (f" (with {entry.needed})" if entry.needs else ""),
            fix=(command_in(why_not) or why_not) if why_not else None,
        )
        for entry, why_not in lacking.items()
    )


def packages() -> tuple[Fact, ...]:
    """Return the installed packages whose environments or components cannot be imported."""
    for group in (entry_points.ENVS, entry_points.COMPONENTS):
        entry_points.import_all(group)
    return tuple(
        Fact(name=package, ok=False, detail=reason, fix=f"mend it, or pip uninstall {package}")
        for package, reason in entry_points.failures()
    )


def models() -> tuple[Fact, ...]:
    """Return the models with a short name and whether they have been imported."""
    if _version("torch") is None or _version("transformers") is None:
        return ()
    from agentgym.trainers.models.sources import named_models

    return tuple(
        Fact(
            name=known.name,
            ok=known.is_there,
            detail=str(known.folder) if known.is_there else f"{known.source}, imported at its first use",
            fix=None if known.is_there else f"agentgym model import {known.name}",
        )
        for known in named_models()
    )


def extras() -> tuple[Fact, ...]:
    """Return the package's extras and whether their requirements are installed."""
    try:
        wanted = importlib.metadata.metadata(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ()
    requirements = wanted.get_all("Requires-Dist") or []
    own = {entry.extra: entry.install_command for entry in entries() if entry.install}
    rows: list[Fact] = []
    for extra in sorted(wanted.get_all("Provides-Extra") or []):
        if extra == "vllm":  # it pins torch and much else, and has an environment of its own
            rows.append(_vllm())
            continue
        mine = [text for text in requirements if re.search(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]", text)]
        names = [re.split(r"[\s<>=!~;\[]", text, maxsplit=1)[0] for text in mine]
        missing = [name for name in names if name != DISTRIBUTION and _version(name) is None]
        rows.append(
            Fact(
                name=extra,
                ok=not missing,
                detail="installed" if not missing else f"missing {', '.join(missing)}",
                fix=own.get(extra, install_command(extra)) if missing else None,
            )
        )
    return tuple(rows)


def num_cores() -> int:
    """Return the number of cores that this process may use: its affinity, limited by a container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):
        return cores


def _memory() -> str:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    total, free = kilobytes["MemTotal"] / 2**20, kilobytes["MemAvailable"] / 2**20
    limit = _memory_limit() / 2**30
    return f"{free:.1f} GiB free of {total:.1f}" + (f", {limit:.1f} for this process" if limit < total else "")


def _memory_limit(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the memory in bytes that the control groups of this process allow; infinity without a limit.

    Args:
        groups: the file that names the groups.
        root: the folder where the hierarchies of version 1, or the one of version 2, are mounted.
    """
    limits = [math.inf]
    with suppress(OSError, ValueError):
        for line in groups.read_text(encoding="utf-8").splitlines():
            _, controller, path = line.split(":", 2)
            if controller in ("", "memory"):  # empty in version 2
                own = root / controller / path.strip("/")
                limits += [_limit_of(group) for group in (own, *own.parents) if group.is_relative_to(root)]
    return min(limits)


def _limit_of(group: Path) -> float:
    for name in ("memory.max", "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" is no limit
            return float((group / name).read_text(encoding="ascii"))
    return math.inf


def _gpu() -> Fact:
    text = _run(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"])
    if not text:
        return Fact(name="GPU", ok=False, detail="none found (nvidia-smi); small models train on the CPU")
    return Fact(name="GPU", ok=True, detail="; ".join(text.splitlines()))


def _torch() -> Fact:
    version = _version("torch")
    if version is None:
        return Fact(name="torch", ok=False, detail="not installed", fix=install_command("train"))
    try:
        import torch

        has_cuda = torch.cuda.is_available()
    except Exception as error:  # a broken install must not stop the command
        return Fact(name="torch", ok=False, detail=f"{version} does not load: {error}", fix="pip install -U torch")
    return Fact(name="torch", ok=True, detail=f"{version}, {'with CUDA' if has_cuda else 'CPU only'}")


def _vllm() -> Fact:
    from agentgym.trainers.engines.vllm.launch import VENV, find_vllm

    try:
        found = find_vllm()
    except UsageError:
        fix = f"python3 -m venv {VENV} && {VENV}/bin/pip install vllm (for CPUs: docs/engines.md)"
        return Fact(name="vllm", ok=False, detail=f"neither in {VENV} nor here", fix=fix)
    return Fact(name="vllm", ok=True, detail=f"{found.version} {'for CPUs ' if found.is_cpu else ''}({found.python})")


def _ray() -> Fact:
    version = _version("ray")
    if version is None:
        return Fact(name="Ray", ok=False, detail="not installed; one machine needs none", fix=install_command("ray"))
    address = os.environ.get("RAY_ADDRESS")
    where = f"the cluster of RAY_ADDRESS={address}" if address else "cluster.address=local, or auto after ray start"
    return Fact(name="Ray", ok=True, detail=f"{version}; {where}")


def _docker() -> Fact:
    if shutil.which("docker") is None:
        return Fact(name="Docker", ok=False, detail="not installed", fix="apt-get install docker.io iptables")
    version = _run(["docker", "version", "--format", "{{.Server.Version}}"])
    if not version:
        fix = "systemctl start docker (or dockerd &)"
        return Fact(name="Docker", ok=False, detail="installed, daemon not reachable", fix=fix)
    return Fact(name="Docker", ok=True, detail=f"daemon {version}")


def _bubblewrap() -> Fact:
    fix = "apt-get install bubblewrap"
    if shutil.which("bwrap") is None:
        return Fact(name="bubblewrap", ok=False, detail="not installed", fix=fix)
    works = _run(["bwrap", "--ro-bind", "/", "/", "--unshare-all", "echo", "yes"]) == "yes"
    detail = _run(["bwrap", "--version"]) or "installed"
    if not works:
        return Fact(name="bubblewrap", ok=False, detail=f"{detail}, but namespaces are not allowed here")
    return Fact(name="bubblewrap", ok=True, detail=detail)


def _chromium() -> Fact:
    from agentgym.envs.gui.chromium import INSTALL, find_chromium

    try:
        found = find_chromium()
    except EnvError:
        return Fact(name="Chromium", ok=False, detail="not installed", fix=INSTALL)
    version = (_run([str(found), "--version"]).splitlines() or ["does not say its version"])[0].strip()
    if _version("playwright") is None:
        fix = install_command("gui")
        return Fact(name="Chromium", ok=False, detail=f"{version} ({found}), but Playwright is not installed", fix=fix)
    return Fact(name="Chromium", ok=True, detail=f"{version} ({found}), driven by Playwright {_version('playwright')}")


def _program(name: str, commands: Sequence[str], fix: str, version_flag: str = "--version") -> Fact:
    found = next((path for command in commands if (path := shutil.which(command))), None)
    if found is None:
        return Fact(name=name, ok=False, detail="not installed", fix=fix)
    said = _run([found, version_flag])
    return Fact(name=name, ok=True, detail=said.splitlines()[0].strip() if said else found)


def _package(name: str, fix: str) -> Fact:
    version = _version(name)
    return Fact(name=name, ok=version is not None, detail=version or "not installed", fix=None if version else fix)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _run(command: Sequence[str]) -> str:
    """Return the output of a program (some print their version to stderr), or an empty text if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout.strip() or done.stderr.strip()) if done.returncode == 0 else ""
