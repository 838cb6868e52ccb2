"""Play, use up sandboxes, train and serve for long: memory, descriptors, threads, processes and files stay flat.

    python benchmarks/soak/soak.py --parts episodes sandboxes --output benchmarks/soak/results
    python benchmarks/soak/soak.py --parts training serving --output benchmarks/soak/commands
    python benchmarks/soak/soak.py --episodes 2000 --cycles 40 --steps 300 --sessions 160 --output OUT

The state of the process and its children is recorded at 20 points of each part. The last quarter of the points must
not lie above the second one: no more descriptors, threads, processes and files, and at most 2 % and 4 MiB more memory.
The first quarter is ignored, since caches fill there. A part that grows ends the script with exit code 1.

Training runs and servers are commands that are watched from outside. For them, the page also shows the processor time
and the growth of the run's folder per step or session. These are not judged.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from commands import KINDS, serving, training
from watch import HELD, NUM_POINTS, SPENT, Point, halves, is_flat, point

from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.registry import make
from agentgym.rollout.agent import ScriptedAgent
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.plan import TaskSchedule
from agentgym.rollout.pool import EnvPool
from agentgym.sandboxes.ladder import open_sandbox
from agentgym.sandboxes.pool import SandboxPool

GROUP_SIZE = 4
PARTS = ("episodes", "sandboxes", "training", "serving")
RENEWED_EVERY = 50
"""Cycles after which the pool is closed and a new one is opened."""


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


def jobs_of(args: argparse.Namespace, folder: Path) -> dict[str, Callable[[], Iterator[Point]]]:
    """Return the parts that the command line asks for, by name."""
    found: dict[str, Callable[[], Iterator[Point]]] = {}
    if "episodes" in args.parts:
        found[f"episodes of GuessNumber-v0 in groups of {GROUP_SIZE}"] = lambda: episodes(args.episodes, folder)
    if "sandboxes" in args.parts:
        for backend in args.backends:
            found[f"cycles of a `{backend}` sandbox"] = partial(sandboxes, backend, args.cycles, folder)
    if "training" in args.parts:
        for kind in args.kinds:
            found[f"steps of `train tiny`, {kind}"] = partial(training, kind, args.steps, folder)
    if "serving" in args.parts:
        found["sessions of a served Household-v0"] = partial(serving, args.sessions, folder / "temporary-serving")
    return found


def as_markdown(results: dict[str, Any]) -> str:
    """Return the page."""
    lines = [
        "# Soak: what a long run holds on to",
        "",
        f"{results['date']}, {results['machine']}, commit {results['commit']}. Command: `{results['command']}`",
        "",
        "Means of the second and of the last quarter of 20 points. A process is left behind in each sandbox. Columns",
        "ms and KiB are the processor time and the growth of the run's folder, per step or session.",
        "",
        "| part | done | memory, MiB | descriptors | threads | processes | temporary files | ms | KiB | flat |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for part in results["parts"]:
        points = [Point(**values) for values in part["points"]]
        pairs = {name: halves(points, name) for name in (*HELD, *SPENT)}
        cells = [
            "–" if name in SPENT and not any(pair) else " to ".join(f"{value:.{name in SPENT:d}f}" for value in pair)
            for name, pair in pairs.items()
        ]
        verdict = "yes" if part["is_flat"] else "**no**"
        lines.append(f"| {part['part']} | {points[-1].done:,} | {' | '.join(cells)} | {verdict} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--cycles", type=int, default=5_000, help="cycles of each kind of sandbox")
    parser.add_argument("--backends", nargs="*", default=["process", "namespaces"])
    parser.add_argument("--steps", type=int, default=2_000, help="training steps of each kind of run")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--sessions", type=int, default=4_000, help="sessions of the served environment")
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--output", type=Path, required=True, help="path without suffix; .json and .md are written")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        tempfile.tempdir = folder  # so that only this run's files are counted
        parts = []
        for part, job in jobs_of(args, Path(folder)).items():
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
    results = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {cpu}, {os.cpu_count()} cores",
        "commit": commit.stdout.strip(),
        "command": f"python benchmarks/soak/soak.py {shlex.join(sys.argv[1:])}",
        "parts": parts,
    }
    args.output.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    args.output.with_suffix(".md").write_text(as_markdown(results), encoding="utf-8")
    print(as_markdown(results))
    if not all(part["is_flat"] for part in parts):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
