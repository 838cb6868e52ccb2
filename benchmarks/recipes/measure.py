"""Success and processor seconds of a recipe as it stands, over seeds.

    export OMP_NUM_THREADS=1
    python benchmarks/recipes/measure.py --recipe household-demo --output OUT.json
    python benchmarks/recipes/measure.py --recipe household-demo --seeds 0 --output OUT.json -- num_steps=1

Every run is a separate process. Its processor time is that of the operating system: start, warm start, RL and
all evaluations. Seconds of RL are those by the clock of the run's own steps, which are the same on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any


def measure(recipe: str, seed: int, changes: Sequence[str]) -> dict[str, Any]:
    """Train once."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = ["-m", "agentgym", "train", recipe, f"seed={seed}", *changes, "--run-dir", str(run_dir), "--json"]
        done = subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True)
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = json.loads(done.stdout)
    steps = [row for row in rows if row["phase"] == "rl"]
    return {
        "seed": seed,
        "success_before": result["success_before"],
        "success_after": result["success_after"],
        "processor_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "rl_steps": len(steps),
        "rl_s": round(sum(value for row in steps for name, value in row.items() if name.startswith("time/")), 1),
    }


def main() -> None:
    """Train with every seed, print, and write the requested files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path)
    parser.add_argument("changes", nargs="*", help="key=value, after --")
    given = parser.parse_args()
    given.seeds = [*dict.fromkeys(given.seeds)]  # a seed that is given twice is one seed
    runs = [measure(given.recipe, seed, given.changes) for seed in given.seeds]
    results = {
        "recipe": given.recipe,
        "changes": given.changes,
        "runs": runs,
        **{name: round(fmean(run[name] for run in runs), 3) for name in ("success_after", "processor_s", "rl_s")},
    }
    text = json.dumps(results, indent=2)
    print(text)
    if given.output:
        given.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
