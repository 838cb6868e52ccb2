"""The reaper, which removes leftovers of dead runs and nothing else.

Every object names its owner: containers and volumes in labels, the rest in notes in the run's folder. Objects of a live
owner stay. Objects of an owner that is not visible from here stay until its lease expires.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agentgym.errors import AgentGymError
from agentgym.sandboxes import cgroups
from agentgym.sandboxes.docker_engine import docker_errors, engine, is_not_found
from agentgym.sandboxes.inside.removal import remove_tree
from agentgym.sandboxes.owner import PREFIX, PROJECT, Owner, descendants, start_ticks
from agentgym.sandboxes.run_folder import SandboxRecord, records, runs, state_folder

_LABEL = {"label": f"{PREFIX}project={PROJECT}"}
_HALF_MADE_S = 3600.0
_KILL_S = 5.0  # seconds that a killed process may take to end


@dataclass(slots=True)
class ReapReport:
    """Removed objects by kind.

    Example:
        >>> ReapReport(containers=["agentgym-0123-0"], num_kept=2).num_removed
        1
    """

    containers: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    cgroups: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    num_kept: int = 0
    """Number of containers, volumes and runs whose owner is alive or not visible."""
    problems: list[str] = field(default_factory=list)

    @property
    def num_removed(self) -> int:
        """Number of removed objects."""
        kinds = (self.containers, self.volumes, self.processes, self.cgroups, self.folders)
        return sum(len(things) for things in kinds)


def reap() -> ReapReport:
    """Remove leftovers of dead runs on this host, and in its Docker engine if one answers."""
    report = ReapReport()
    reap_host(report)
    try:
        reap_docker(report)
    except (AgentGymError, ImportError) as error:
        report.problems.append(str(error))
    return report


def reap_host(report: ReapReport) -> None:
    """Remove processes, control groups and folders of dead runs."""
    for folder, owner in runs():
        if not owner.is_gone():
            report.num_kept += 1
            continue
        for record in records(folder):
            _remove_record(record, report)
        if remove_tree(str(folder)):
            report.folders.append(str(folder))
        elif folder.is_dir():  # another run may be reaping too
            report.problems.append(f"{folder} cannot be removed; remove it by hand")
    for folder in state_folder().glob(".new-*"):  # the process that made it was killed between two steps
        with suppress(OSError):
            if time.time() - folder.lstat().st_mtime > _HALF_MADE_S:
                remove_tree(str(folder))


def reap_docker(report: ReapReport) -> None:
    """Remove containers of dead runs with their anonymous volumes, and labelled volumes."""
    client = engine()
    with docker_errors("look for what dead runs left"):
        containers = client.containers.list(all=True, filters=_LABEL, ignore_removed=True)
        volumes = client.volumes.list(filters=_LABEL)
    for kind, things, removed in (("container", containers, report.containers), ("volume", volumes, report.volumes)):
        for thing in things:
            labels = thing.labels if kind == "container" else thing.attrs.get("Labels")
            if not Owner.of_labels(labels or {}).is_gone():
                report.num_kept += 1
                continue
            try:
                thing.remove(force=True, v=True) if kind == "container" else thing.remove(force=True)
                removed.append(thing.name or "")
            except Exception as error:  # another run may be reaping too
                if not is_not_found(error):
                    report.problems.append(f"{kind} {thing.name}: {error}")


@functools.cache
def reap_host_once() -> None:
    """Call :func:`reap_host` at the first sandbox of a process."""
    reap_host(ReapReport())


@functools.cache
def reap_docker_once() -> None:
    """Call :func:`reap_docker` at the first Docker sandbox of a process."""
    reap_docker(ReapReport())


def _remove_record(record: SandboxRecord, report: ReapReport) -> None:
    """Remove a sandbox's processes and folder. A worker ends with its owner, so only hung or killed ones leave any."""
    left = _processes_of(record.uids)
    if record.start_ticks and start_ticks(record.pid) == record.start_ticks:
        left += [*descendants(record.pid), record.pid]
    killed = {pid: started for pid in left if (started := start_ticks(pid))}
    for pid in killed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            report.processes.append(pid)
    _wait_until_ended(killed)
    groups = tuple(path for path in record.cgroups if os.path.isdir(path))
    cgroups.remove(groups)
    report.cgroups += groups


def _wait_until_ended(killed: Mapping[int, str]) -> None:
    """Wait for killed processes, given with their start, since what still runs writes into the folder to remove."""
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline and any(start_ticks(pid) == started for pid, started in killed.items()):
        time.sleep(0.01)


def _processes_of(uids: tuple[int, ...]) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir() if uids else ():
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid in uids:
                found.append(int(entry.name))
    return found
