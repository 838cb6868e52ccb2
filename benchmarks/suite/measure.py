"""Measure the seconds of each test file, and write them as a table.

    python benchmarks/suite/measure.py --output benchmarks/suite/results
    python benchmarks/suite/measure.py --output OUT --part "tiny=tests/test_errors.py"

Processor seconds hardly depend on what else the machine does; wall-clock seconds do, so the page names the load.
Commands that tests run in a warm Python process (:mod:`testkit.warm_python`) are not in the processor seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGETS = ("fast", "slow")


@dataclass(frozen=True, slots=True)
class FileTime:
    """Seconds of the tests of one file."""

    part: str
    file: str
    num_tests: int
    wall_s: float
    processor_s: float


def make_part(name: str) -> str:
    """Return a part with the arguments that make gives to pytest."""
    command = ["make", "--no-print-directory", "-n", f"{name}-tests"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (*_, line) = (line for line in told.splitlines() if "-m pytest -q " in line)
    return f"{name}={line.partition('-m pytest -q ')[2]}"


def run_part(part: str, times: Path) -> float:
    """Run pytest with a part's arguments, and return its wall-clock seconds."""
    _, _, arguments = part.partition("=")
    path = os.pathsep.join([str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TEST_TIMES": str(times), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = f"{sys.executable} -m pytest -q -p test_times {arguments}"
    started = time.perf_counter()
    done = subprocess.run(command, shell=True, cwd=ROOT, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"pytest failed with exit code {done.returncode}; its times mean nothing")
    return time.perf_counter() - started


def by_file(part: str, times: Path) -> list[FileTime]:
    """Return the seconds of each file, the slowest first."""
    tests: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in times.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        tests[row["file"]].append((row["wall_s"], row["processor_s"]))
    made = [
        FileTime(part, file, len(rows), round(sum(w for w, _ in rows), 1), round(sum(p for _, p in rows), 1))
        for file, rows in tests.items()
    ]
    return sorted(made, key=lambda one: (-one.processor_s, one.file))


def page(files: list[FileTime], walls: dict[str, float], machine: dict[str, str], longest: int = 30) -> str:
    """Return the table as Markdown."""
    head = ["# Seconds of the tests", "", ", ".join(f"{name}: {value}" for name, value in machine.items()), ""]
    head += ["Commands in a warm Python process are not in the processor seconds.", ""]
    head += ["| part | files | tests | wall-clock s | processor s |", "|---|---|---|---|---|"]
    for part, wall_s in walls.items():
        chosen = [one for one in files if one.part == part]
        tests, processor_s = sum(one.num_tests for one in chosen), sum(one.processor_s for one in chosen)
        head.append(f"| {part} | {len(chosen)} | {tests} | {wall_s:.0f} | {processor_s:.0f} |")
    head += ["", f"The {longest} slowest files:", "", "| part | file | tests | wall-clock s | processor s |"]
    head.append("|---|---|---|---|---|")
    slowest = sorted(files, key=lambda one: -one.processor_s)[:longest]
    rows = [f"| {o.part} | `{o.file}` | {o.num_tests} | {o.wall_s} | {o.processor_s} |" for o in slowest]
    return "\n".join([*head, *rows, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="path without suffix; .json and .md are written")
    parser.add_argument("--part", action="append", help="NAME=pytest's arguments; several are allowed")
    chosen = parser.parse_args()
    load = os.getloadavg()[0]
    files: list[FileTime] = []
    walls: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in chosen.part or map(make_part, TARGETS):
            name, times = part.partition("=")[0], Path(folder) / "times.jsonl"
            times.unlink(missing_ok=True)
            walls[name] = round(run_part(part, times), 1)
            files += by_file(name, times)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    machine = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "load before": f"{load:.1f}",
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit.stdout.strip() or "unknown",
    }
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "machine": machine,
        "wall_s": walls,
        "total_s": sum(walls.values()),
        "files": [asdict(one) for one in files],
    }
    chosen.output.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    chosen.output.with_suffix(".md").write_text(page(files, walls, machine), encoding="utf-8")
    print(f"wrote {chosen.output}.json and .md")


if __name__ == "__main__":
    main()
