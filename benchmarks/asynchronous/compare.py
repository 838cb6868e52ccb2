"""Trajectories per hour of training in lock-step, sync and async mode, on heavy-tailed delays.

    python benchmarks/asynchronous/compare.py --start RUN/model --seeds 0
    python benchmarks/asynchronous/compare.py --arms sync async-2 --eval-episodes 0 --runs runs/two --out OUT

From the same warm start, on the same tasks, with the same number of rollouts (lock-step: fewer steps, as it is slow).
Without ``--start`` the warm start is that of ``household-long``, made once.
Arms run one after another, seed by seed. Ratios are those of one machine in one run; success on held-out tasks is
measured after training. A finished run is not run again, so an interrupted benchmark resumes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

from lock_step import train_in_lock_step

from agentgym.evals.runner import EvalSummary, evaluate
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.run.run import Run
from agentgym.trainers.train import train

HERE = Path(__file__).parent
LOCK_STEP = "lock-step"
ARMS = {
    "sync": ["group.num_envs={step}"],
    "async-1": ["pipeline.mode=async", "pipeline.max_staleness=1", "group.num_envs={two_steps}"],
    "async-2": ["pipeline.mode=async", "pipeline.max_staleness=2", "group.num_envs={three_steps}"],
    LOCK_STEP: ["group.num_envs={step}", "group.max_retries=0"],
    "sync, 1 of 5 cut": ["pipeline.over_provision=1", "group.num_envs={with_extra}"],
}
"""Every schedule has as many environments as it can use; ``{step}`` is a step's episodes."""


def run_dir_of(runs: Path, name: str, seed: int) -> Path:
    """Return the folder of an arm's run."""
    return runs / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"


def warm_start(runs: Path, changes: list[str]) -> Path:
    """Return the model folder of the warm start of ``household-long``, which is made unless it is there."""
    run_dir = runs / "start"
    if not (run_dir / "model").is_dir():
        config = apply_overrides(load_recipe("household-long"), ["num_steps=0", "eval.num_episodes=8", *changes])
        train(config, run_dir, resume=(run_dir / "config.json").exists())
    return run_dir / "model"


def config_of(name: str, options: argparse.Namespace, seed: int) -> TrainConfig:
    """Return the configuration of an arm's run."""
    groups, size = options.groups_per_step, options.group_size
    step = groups * size
    sizes = {"step": step, "two_steps": 2 * step, "three_steps": 3 * step, "with_extra": step + groups}
    return apply_overrides(
        load_recipe("household-long"),
        [
            f"env.id={HERE / 'browsing.py'}:Browsing-v0",
            f"env.kwargs.median_s={options.median_s}",
            f"model.path={json.dumps(str(options.start))}",
            "sft.num_demos=0",
            f"num_steps={options.lock_step_steps if name == LOCK_STEP else options.steps}",
            f"groups_per_step={groups}",
            f"group.group_size={size}",
            f"seed={seed}",
            "eval.num_episodes=8",  # the comparison is :func:`held_out`, after the timed runs
            *(override.format(**sizes) for override in ARMS[name]),
        ],
    )


def play(name: str, options: argparse.Namespace, seed: int) -> None:
    """Train once, unless the run is finished."""
    run_dir = run_dir_of(options.runs, name, seed)
    if (run_dir / "model").is_dir():
        return
    config = config_of(name, options, seed)
    if name == LOCK_STEP:
        train_in_lock_step(config, run_dir)
    else:
        train(config, run_dir, resume=(run_dir / "config.json").exists())
    (run_dir / "load.json").write_text(json.dumps(os.getloadavg()), encoding="utf-8")


async def held_out(name: str, options: argparse.Namespace, seed: int) -> EvalSummary:
    """Return the sampled success of an arm's final model on held-out tasks, without delays."""
    run_dir = run_dir_of(options.runs, name, seed)
    config = config_of(name, options, seed)
    run = Run(replace(config, model=replace(config.model, path=str(run_dir / "model"))), run_dir)
    (env,) = run.envs
    tasks = list(env.eval_tasks[: options.eval_episodes])
    out_dir = run_dir / "eval" / f"held-out-{len(tasks)}"
    return await evaluate(
        tasks,
        env.pool,
        run.make_agent(env, config.sampling.temperature),
        out_dir=out_dir,
        suite_or_env=config.env.id,
        policy=name,
        seed=seed,
        group_config=replace(config.group, group_size=1, min_valid=1),
        resume=out_dir.is_dir(),
    )


def row_of(name: str, run_dir: Path, seed: int, success: EvalSummary | None = None) -> dict[str, Any]:
    """Summarise the metrics of a run."""
    rows = read_json_lines(run_dir / "metrics.jsonl")
    steps = [row for row in rows if row["phase"] == "rl"]
    seconds = [sum(value for key, value in row.items() if key.startswith("time/")) for row in steps]
    num_episodes = sum(value for row in steps for key, value in row.items() if key.startswith("status/"))
    return {
        "name": name,
        "seed": seed,
        "num_episodes": num_episodes,
        "wall_s": sum(seconds),
        "episodes_per_hour": 3600 * num_episodes / sum(seconds),
        "waiting_share": sum(row["time/rollout_s"] for row in steps) / sum(seconds),
        # counters run from the process's start, so the first step is their base
        "engine_busy_share": (steps[-1]["engine/busy_s"] - steps[0]["engine/busy_s"]) / sum(seconds[1:]),
        "num_turns": fmean(row["num_turns"] for row in steps),
        "num_cut": sum(row["num_cut"] for row in steps),
        "staleness_mean": fmean(row["staleness_mean"] for row in steps),
        "staleness_max": max(row["staleness_max"] for row in steps),
        "train_success": fmean(row["success"] for row in steps),
        "success_after": success.success if success else None,
        "after_low": success.success_low if success else None,
        "after_high": success.success_high if success else None,
        "load_after": json.loads((run_dir / "load.json").read_text(encoding="utf-8"))[0],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return means over seeds as Markdown."""
    lines = [
        "| arm | episodes per hour | against sync | against lock-step | waiting | engine busy | staleness mean, max "
        "| success after (95 %, per seed) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    arms = list(dict.fromkeys(row["name"] for row in rows))
    speed = {name: fmean(r["episodes_per_hour"] for r in rows if r["name"] == name) for name in arms}

    def against(name: str, other: str) -> str:
        return f"{speed[name] / speed[other]:.2f}" if other in speed else "–"

    for name in arms:
        mine = [row for row in rows if row["name"] == name]
        known = [row for row in mine if row["success_after"] is not None]
        intervals = "; ".join(
            f"{r['success_after']:.2f} ({r['after_low']:.2f} to {r['after_high']:.2f})" for r in known
        )
        ages = f"{fmean(r['staleness_mean'] for r in mine):.2f}, {max(r['staleness_max'] for r in mine):.0f}"
        lines.append(
            f"| {name} | {speed[name]:,.0f} | {against(name, 'sync')} | {against(name, LOCK_STEP)} "
            f"| {fmean(r['waiting_share'] for r in mine):.0%} | {fmean(r['engine_busy_share'] for r in mine):.0%} "
            f"| {ages} | {intervals or 'not measured'} |"
        )
    return "\n".join(lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that this script and ``simulate.py`` share."""
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/asynchronous"))
    parser.add_argument("--out", type=Path, default=HERE)


def main() -> None:
    """Run and write ``results.json`` and ``results.md``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--start", type=Path, help="model folder of a warm start")
    parser.add_argument("--start-with", nargs="*", default=[], help="changes of the warm start that is made")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--lock-step-steps", type=int, default=3)
    parser.add_argument("--groups-per-step", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument(
        "--eval-episodes", type=int, default=100, help="held-out episodes per arm, after all runs; 0 for none"
    )
    parser.add_argument("--median-s", type=float, default=1.0, help="median delay of a turn in seconds")
    options = parser.parse_args()
    options.seeds = [*dict.fromkeys(options.seeds)]  # a seed that is given twice is one seed
    options.start = options.start or warm_start(options.runs, options.start_with)
    for seed in options.seeds:
        for name in options.arms:
            play(name, options, seed)
    rows = []
    for seed in options.seeds:
        for name in options.arms:
            is_asked = options.eval_episodes and name != LOCK_STEP  # which has had fewer steps
            success = asyncio.run(held_out(name, options, seed)) if is_asked else None
            rows.append(row_of(name, run_dir_of(options.runs, name, seed), seed, success))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    about = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared with other work (load_after: 1-minute load)",
        "date": date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "steps": options.steps,
        "lock_step_steps": options.lock_step_steps,
        "episodes_per_step": options.groups_per_step * options.group_size,
        "delay_per_turn": f"lognormal, median {options.median_s} s, sigma 1.0",
    }
    (options.out / "results.json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    facts = "\n".join(f"* {name.replace('_', ' ')}: {value}" for name, value in about.items())
    (options.out / "results.md").write_text(f"{facts}\n\n{table(rows)}\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
