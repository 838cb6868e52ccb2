"""The resources that processes hold, and whether they grow."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

NUM_POINTS = 20
NUM_LOOKS = 8
HELD = ("memory_mib", "descriptors", "threads", "processes", "files")
SPENT = ("cpu_ms", "disk_kib")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Resources that a process and its descendants hold at one moment."""

    done: int
    memory_mib: float
    descriptors: int
    threads: int
    processes: int
    files: int
    """Files in the folder for temporary files."""
    cpu_ms: float = 0.0
    """Processor time since the point before, per unit of work; 0 if it is not measured."""
    disk_kib: float = 0.0
    """Growth of a run's folder since the point before, per unit of work; 0 if there is no run."""


def point(done: int, folder: Path, process: int | None = None) -> Point:
    """Record the resources that are held now.

    Args:
        folder: the folder for temporary files.
        process: a process that is watched together with its descendants; None for this process, whose descendants are
            only counted.
    """
    if process is None:
        gc.collect()
    members = family(os.getpid() if process is None else process)
    held = [found for member in (members[:1] if process is None else members) if (found := _held(member))]
    memory, descriptors, threads = (sum(column) for column in zip(*held, strict=True))
    return Point(
        done=done,
        memory_mib=memory / 1024,
        descriptors=descriptors,
        threads=threads,
        processes=len(members) - 1,
        files=sum(len(names) for _, *both in os.walk(folder) for names in both),
    )


def steady_point(done: int, folder: Path, process: int) -> Point:
    """Record the least that a process held in a tenth of a second, without files that were open for a moment."""
    points = []
    for _ in range(NUM_LOOKS):
        points.append(point(done, folder, process))
        time.sleep(0.1 / NUM_LOOKS)
    return Point(done=done, **{name: min(getattr(one, name) for one in points) for name in HELD})


def family(process: int) -> list[int]:
    """Return a process and its descendants."""
    found = [process]
    with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (task / "children").read_text(encoding="utf-8").split()):
                found += family(child)
    return found


def cpu_s(process: int) -> float:
    """Return the processor time of a process and its descendants, with those that have ended, in seconds."""
    ticks = 0
    for number, member in enumerate(family(process)):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{member}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15] if number == 0 else fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def disk_kib(folder: Path) -> float:
    """Return the size of all files below a folder in KiB."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except FileNotFoundError:  # an old checkpoint has just been removed
                continue
    return total / 1024


def halves(points: Sequence[Point], name: str) -> tuple[float, float]:
    """Return the means of the second and of the last quarter. Caches fill in the first quarter."""
    quarter = len(points) // 4
    early, late = points[quarter : 2 * quarter], points[-quarter:]
    return fmean(getattr(p, name) for p in early), fmean(getattr(p, name) for p in late)


def is_flat(points: Sequence[Point]) -> bool:
    """True if nothing that is held grew by more than the allowance: 4 MiB and 2 % of memory, and nothing else."""
    grown = {name: late - early for name in HELD for early, late in [halves(points, name)]}
    allowed = 4 + 0.02 * points[len(points) // 4].memory_mib
    return grown.pop("memory_mib") <= allowed and all(value <= 0 for value in grown.values())


def _held(process: int) -> tuple[int, int, int] | None:
    """Return a process's memory in KiB, descriptors and threads; None if it has just ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
        status = dict(line.split(":", 1) for line in lines)
        return int(status["VmRSS"].split()[0]), len(os.listdir(f"/proc/{process}/fd")), int(status["Threads"])
    except (FileNotFoundError, ProcessLookupError, KeyError):
        return None
