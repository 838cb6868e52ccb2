"""Trajectories per hour of synchronous and asynchronous training on an environment with heavy-tailed delays.

    python benchmarks/asynchronous/compare.py --start RUN/model --seeds 0 1 2

From the same warm start, with the same number of rollouts: ``sync``, where a step waits for its slowest episode, and
``async`` with the given bounds of staleness. Ratios are those of one machine in one run; success on held-out tasks is
measured after training.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

from agentgym.rollout.record import read_json_lines
from agentgym.trainers.loop import train
from agentgym.trainers.overrides import apply_overrides
from agentgym.trainers.recipes import load_recipe

HERE = Path(__file__).parent


def measure(name: str, overrides: list[str], options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train once; gives the row of results."""
    run_dir = options.runs / f"{name}-{seed}"
    config = apply_overrides(
        load_recipe("household-demo"),
        [
            f"env.id={HERE / 'browsing.py'}:Browsing-v0",
            f"model.path={json.dumps(str(options.start))}",
            "sft.num_demos=0",
            f"num_steps={options.steps}",
            f"seed={seed}",
            "eval.num_episodes=100",
            *overrides,
        ],
    )
    if not (run_dir / "model").is_dir():
        train(config, run_dir, resume=(run_dir / "config.json").exists())
    rows = read_json_lines(run_dir / "metrics.jsonl")
    steps = [row for row in rows if row["phase"] == "rl"]
    seconds = sum(value for row in steps for key, value in row.items() if key.startswith("time/"))
    num_episodes = sum(value for row in steps for key, value in row.items() if key.startswith("status/"))
    after = [row for row in rows if row["phase"] == "eval"][-1]
    return {
        "name": name,
        "seed": seed,
        "episodes_per_hour": 3600 * num_episodes / seconds,
        "waiting_share": sum(row["time/rollout_s"] for row in steps) / seconds,
        "staleness_mean": fmean(row["staleness_mean"] for row in steps),
        "staleness_max": max(row["staleness_max"] for row in steps),
        "train_success": fmean(row["success"] for row in steps),
        "success_after": after["success"],
        "after_low": after["success_low"],
        "after_high": after["success_high"],
    }


def main() -> None:
    """Run and write ``results.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", type=Path, required=True, help="model folder of a warm start")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--staleness", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/asynchronous"))
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    arms = {"sync": ["pipeline.mode=sync"]}
    for bound in options.staleness:
        arms[f"async-{bound}"] = ["pipeline.mode=async", f"pipeline.max_staleness={bound}", "group.num_envs=128"]
    rows = [measure(name, overrides, options, seed) for seed in options.seeds for name, overrides in arms.items()]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "machine": platform.machine(),
        "date": date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "steps": options.steps,
        "rows": rows,
    }
    (options.out / "results.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    base = fmean(row["episodes_per_hour"] for row in rows if row["name"] == "sync")
    for name in arms:
        mine = [row for row in rows if row["name"] == name]
        speed = fmean(row["episodes_per_hour"] for row in mine)
        success = fmean(row["success_after"] for row in mine)
        waiting = fmean(row["waiting_share"] for row in mine)
        print(f"{name}: {speed / base:.2f}x episodes per hour, waiting {waiting:.0%}, success {success:.3f}")


if __name__ == "__main__":
    main()
