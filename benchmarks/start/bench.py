"""Processor seconds of commands that should answer at once.

    python benchmarks/start/bench.py --output benchmarks/start/results.json

Each command runs in a separate process, after one run that fills the disk cache. Results are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

COMMANDS = {
    "help": ["--help"],
    "list": ["list"],
    "train --dry-run": ["train", "household-demo", "--dry-run"],
    "check": ["check", "agentgym/Maze-v0", "--episodes", "2"],
}


def processor_seconds(arguments: list[str], folder: str) -> float:
    """Return user and system seconds of the command and of its children.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "agentgym", *arguments]
    subprocess.run(command, check=True, capture_output=True, cwd=folder, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure, print, and write the requested files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commands", nargs="+", choices=list(COMMANDS), default=list(COMMANDS))
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in given.commands:
            times = [processor_seconds(COMMANDS[name], folder) for _ in range(given.rounds + 1)][1:]
            results[name] = {"processor_s": round(statistics.median(times), 2), "highest": round(max(times), 2)}
    text = json.dumps(results, indent=2)
    print(text)
    if given.output:
        given.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
