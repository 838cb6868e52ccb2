"""Time of a training step with and without the memory setting of ``agentgym.trainers.memory``, in alternation.

    python benchmarks/freed_memory/compare.py --out benchmarks/freed_memory/results.json

Each round trains the same supervised steps from the same seed in a process of its own, once as ``train`` does it and
once with the C library's defaults; medians of the rounds are compared. The last loss must be the same number.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from agentgym.rollout.record import read_json_lines
from agentgym.trainers import loop
from agentgym.trainers.overrides import apply_overrides
from agentgym.trainers.recipes import load_recipe

OVERRIDES = ["sft.num_demos=640", "sft.num_epochs=1", "sft.batch_size=32", "num_steps=0"]


def child(kind: str, folder: Path) -> None:
    """Train once; prints the time of the steps, the last loss and the peak of memory."""
    if kind == "default":
        vars(loop)["keep_freed_memory"] = lambda: False
    loop.train(apply_overrides(load_recipe("household-demo"), OVERRIDES), folder / "run")
    rows = [row for row in read_json_lines(folder / "run" / "metrics.jsonl") if row["phase"] == "sft"]
    seconds = (folder / "run" / "metrics.jsonl").stat().st_mtime - (folder / "run" / "config.json").stat().st_mtime
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "loss": rows[-1]["loss"],
                "wall_s": seconds,
                "cpu_s": usage.ru_utime + usage.ru_stime,
                "sys_s": usage.ru_stime,
                "peak_mb": usage.ru_maxrss / 1024,
                "faults": usage.ru_minflt,
            }
        )
    )


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=["kept", "default"])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()
    if options.child:
        child(options.child, options.folder)
        return
    found: dict[str, list[dict[str, Any]]] = {"kept": [], "default": []}
    for _ in range(options.rounds):
        for kind, rows in found.items():
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, __file__, "--child", kind, "--folder", folder]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            rows.append(json.loads(output.splitlines()[-1]))
            print(kind, rows[-1], flush=True)
    if len({row["loss"] for rows in found.values() for row in rows}) != 1:
        raise SystemExit("the losses differ: the setting changes numbers, which it must not")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    medians = {kind: median(row["cpu_s"] for row in rows) for kind, rows in found.items()}
    result = {
        "machine": platform.machine(),
        "date": date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "overrides": OVERRIDES,
        "rounds": found,
        "median_cpu_s": medians,
        "ratio": medians["default"] / medians["kept"],
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{result['ratio']:.2f}x")


if __name__ == "__main__":
    main()
