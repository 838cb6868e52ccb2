"""Credit estimators side by side: the same warm start, tasks, seeds and number of rollouts for each.

    python benchmarks/household/compare.py --seeds 0 1 2 --estimators grpo gigpo

For every seed the recipe's warm start is run once; from its weights each estimator trains for the same number of steps
on the same task order. Sampled success on held-out tasks is measured before and after with the same seeds. Finished
runs are not run again, so an interrupted benchmark resumes.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

from agentgym.evals.statistics import seeds_text
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides, to_dict
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train


def run_once(config: TrainConfig, run_dir: Path) -> None:
    """Train, or resume, or do nothing if the run has finished."""
    if not (run_dir / "model").is_dir():
        train(config, run_dir, resume=(run_dir / "config.json").exists())


def run_seed(recipe: TrainConfig, seed: int, estimators: list[str], out: Path) -> list[dict[str, Any]]:
    """Run one warm start and one training per estimator; return a row for each."""
    start_dir = out / f"start-{seed}"
    run_once(replace(recipe, seed=seed, num_steps=0), start_dir)
    rows = []
    for estimator in estimators:
        run_dir = out / f"{estimator}-{seed}"
        config = replace(
            recipe,
            seed=seed,
            model=replace(recipe.model, path=str(start_dir / "model")),
            sft=replace(recipe.sft, num_demos=0),
            credit=replace(recipe.credit, estimator=estimator),
        )
        run_once(config, run_dir)
        metrics = read_json_lines(run_dir / "metrics.jsonl")
        before, after = (row for row in metrics if row["phase"] == "eval")
        steps = [row for row in metrics if row["phase"] == "rl"]
        rows.append(
            {
                "estimator": estimator,
                "seed": seed,
                "success_before": before["success"],
                "success_after": after["success"],
                "after_low": after["success_low"],
                "after_high": after["success_high"],
                "mean_turns_after": after["mean_turns"],
                "train_success": [round(row["success"], 4) for row in steps],
                "anchor_share": fmean(row["anchor_share"] for row in steps),
                "zero_advantage_share": fmean(row["zero_advantage_share"] for row in steps),
                "logprob_gap_max": max(row["logprob_gap_max"] or 0.0 for row in steps),
                "rl_s": sum(value for row in steps for name, value in row.items() if name.startswith("time/")),
            }
        )
    return rows


def table(rows: list[dict[str, Any]], estimators: list[str]) -> str:
    """Return the result as a Markdown table."""
    lines = ["| estimator | success before RL | success after RL | gain | turns after |", "|---|---|---|---|---|"]
    for estimator in estimators:
        mine = [row for row in rows if row["estimator"] == estimator]
        before = fmean(row["success_before"] for row in mine)
        after = seeds_text([row["success_after"] for row in mine])
        gain = seeds_text([row["success_after"] - row["success_before"] for row in mine], sign=True)
        turns = fmean(row["mean_turns_after"] for row in mine)
        lines.append(f"| {estimator} | {before:.3f} | {after} | {gain} | {turns:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Run everything and write ``results.json`` and ``results.md``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="household-long")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--estimators", nargs="+", default=["grpo", "gigpo"])
    parser.add_argument("--runs", type=Path, default=Path("runs/compare"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder of the results")
    parser.add_argument("overrides", nargs="*", help="key=value of the recipe")
    options = parser.parse_args()
    options.seeds = [*dict.fromkeys(options.seeds)]  # a seed that is given twice is one seed
    recipe = apply_overrides(load_recipe(options.recipe), options.overrides)
    rows = [row for seed in options.seeds for row in run_seed(recipe, seed, options.estimators, options.runs)]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "machine": f"{platform.machine()}, {_cpu()}",
        "date": date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "command": f"python benchmarks/household/compare.py --recipe {options.recipe} --seeds "
        f"{' '.join(map(str, options.seeds))} --estimators {' '.join(options.estimators)}",
        "config": to_dict(recipe),
        "rows": rows,
    }
    (options.out / "results.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    text = table(rows, options.estimators)
    (options.out / "results.md").write_text(
        f"{text}\n\nSampled success on {recipe.eval.num_episodes} held-out tasks, mean of seeds "
        f"{', '.join(map(str, options.seeds))} with 95 % intervals over seeds; {recipe.num_steps} steps of "
        f"{recipe.groups_per_step} x {recipe.group.group_size} episodes each. {result['machine']}, {result['date']}, "
        f"commit {result['commit']}.\n",
        encoding="utf-8",
    )
    print(text)


def _cpu() -> str:
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


if __name__ == "__main__":
    main()
