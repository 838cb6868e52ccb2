"""Play many cheap episodes and use up many sandboxes: memory, descriptors, threads, processes and files stay flat.

    python benchmarks/soak/soak.py --output benchmarks/soak/results
    python benchmarks/soak/soak.py --episodes 2000 --cycles 40 --backends process --output OUT

The state of the process and its children is recorded at 20 points of each part. The last quarter of the points must
not lie above the second one: no more descriptors, threads, processes and files, and at most 2 % and 4 MiB more memory.
The first quarter is ignored, since caches fill there. A part that grows ends the script with exit code 1.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import gc
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.registry import make
from agentgym.rollout.agent import ScriptedAgent
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.plan import TaskSchedule
from agentgym.rollout.pool import EnvPool
from agentgym.sandboxes.ladder import open_sandbox
from agentgym.sandboxes.pool import SandboxPool

NUM_POINTS = 20
GROUP_SIZE = 4
RENEWED_EVERY = 50
"""Cycles after which the pool is closed and a new one is opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Resources that this process and its children hold at one moment."""

    done: int
    memory_mib: float
    descriptors: int
    threads: int
    processes: int
    files: int
    """Files in the folder for temporary files."""


def point(done: int, folder: Path) -> Point:
    """Record the resources that are held now."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    return Point(
        done=done,
        memory_mib=int(status["VmRSS"].split()[0]) / 1024,
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=int(status["Threads"]),
        processes=len(_children(os.getpid())),
        files=sum(len(names) for _, *both in os.walk(folder) for names in both),
    )


def _children(process: int) -> list[int]:
    """Return a process's descendants."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in map(int, (task / "children").read_text(encoding="utf-8").split()):
            found += [child, *_children(child)]
    return found


def episodes(total: int, folder: Path) -> Iterator[Point]:
    """Play, record nothing, and assign credit to all of it."""
    env_id, chunk = "agentgym/GuessNumber-v0", max(1, total // NUM_POINTS)
    schedule = TaskSchedule(make(env_id).tasks("train"), 0)
    config = GroupConfig(group_size=GROUP_SIZE, num_envs=64)

    async def play(first: int) -> None:
        pool = EnvPool(lambda: make(env_id), config.num_envs)
        tasks = schedule.take(first, chunk // GROUP_SIZE)
        groups = await run_groups(
            tasks, pool, lambda env, seed: ScriptedAgent(lambda _: env.oracle()), config, seed=first
        )
        await pool.close()
        credit_groups(list(groups), CreditConfig())

    for number in range(NUM_POINTS):
        asyncio.run(play(number * chunk))
        yield point((number + 1) * chunk, folder)


def sandboxes(backend: str, total: int, folder: Path) -> Iterator[Point]:
    """Acquire a sandbox, write, run, leave a process behind and give it back; open new sandboxes now and then."""
    chunk = max(1, total // NUM_POINTS)
    done = 0
    for _ in range(NUM_POINTS):
        for _ in range(max(1, chunk // RENEWED_EVERY)):
            with SandboxPool(lambda: open_sandbox(backend), num_ready=1, max_open=2) as pool:
                for _ in range(min(chunk, RENEWED_EVERY)):
                    with pool.acquire() as sandbox:
                        sandbox.write("notes.txt", "mine")
                        result = sandbox.exec("cat notes.txt; (sleep 60 &)")
                        assert result.stdout == "mine", result
                    done += 1
        yield point(done, folder)


def growth(points: list[Point]) -> dict[str, float]:
    """Return the mean of the last quarter less that of the second one."""
    quarter = len(points) // 4
    early, late = points[quarter : 2 * quarter], points[-quarter:]
    names = ("memory_mib", "descriptors", "threads", "processes", "files")
    return {name: fmean(getattr(p, name) for p in late) - fmean(getattr(p, name) for p in early) for name in names}


def is_flat(points: list[Point]) -> bool:
    """True if nothing grew by more than the allowance."""
    grown = growth(points)
    allowed = 4 + 0.02 * points[len(points) // 4].memory_mib
    return grown.pop("memory_mib") <= allowed and all(value <= 0 for value in grown.values())


def as_markdown(results: dict[str, Any]) -> str:
    """Return the page."""
    lines = [
        "# Soak: what a long run holds on to",
        "",
        f"{results['date']}, {results['machine']}, commit {results['commit']}. Command: `{results['command']}`",
        "",
        "Means of the second and of the last quarter of 20 points. A process is left behind in each sandbox.",
        "",
        "| part | done | memory, MiB | descriptors | threads | processes | temporary files | flat |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for part in results["parts"]:
        points = [Point(**values) for values in part["points"]]
        quarter = len(points) // 4
        cells = []
        for name in ("memory_mib", "descriptors", "threads", "processes", "files"):
            pair = [
                fmean(getattr(p, name) for p in some) for some in (points[quarter : 2 * quarter], points[-quarter:])
            ]
            cells.append(" to ".join(f"{value:.0f}" for value in pair))
        verdict = "yes" if part["is_flat"] else "**no**"
        lines.append(f"| {part['part']} | {points[-1].done:,} | {' | '.join(cells)} | {verdict} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--cycles", type=int, default=5_000, help="cycles of each kind of sandbox")
    parser.add_argument("--backends", nargs="*", default=["process", "namespaces"])
    parser.add_argument("--output", type=Path, required=True, help="path without suffix; .json and .md are written")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        tempfile.tempdir = folder  # so that only this run's files are counted
        jobs: dict[str, Callable[[], Iterator[Point]]] = {
            f"episodes of GuessNumber-v0 in groups of {GROUP_SIZE}": lambda: episodes(args.episodes, Path(folder))
        }
        for backend in args.backends:
            jobs[f"cycles of a `{backend}` sandbox"] = lambda backend=backend: sandboxes(
                backend, args.cycles, Path(folder)
            )
        parts = []
        for part, job in jobs.items():
            points = []
            for taken in job():
                points.append(taken)
                print(part, taken, flush=True)
            parts.append({"part": part, "is_flat": is_flat(points), "points": [asdict(taken) for taken in points]})
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        "unknown processor",
    )
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    options = f"--episodes {args.episodes} --cycles {args.cycles} --backends {' '.join(args.backends)}"
    results = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {cpu}, {os.cpu_count()} cores",
        "commit": commit.stdout.strip(),
        "command": f"python benchmarks/soak/soak.py {options}",
        "parts": parts,
    }
    args.output.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    args.output.with_suffix(".md").write_text(as_markdown(results), encoding="utf-8")
    print(as_markdown(results))
    if not all(part["is_flat"] for part in parts):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
