"""Measure what a real pretrained model learns: base model, SFT, and RL by several estimators, at equal rollouts.

    python benchmarks/smollm2/learning.py --recipe smollm2-wiki --seeds 0 1 2 --output benchmarks/smollm2/wiki
    python benchmarks/smollm2/learning.py --recipe smollm2-guess --arms gigpo --seeds 0 --output OUT -- num_steps=4

Runs that are in ``OUTPUT.json`` already are kept, so that a measurement can be stopped and continued. Every run is a
process of its own, and its processor time is what the operating system counted. What follows ``--`` changes the recipe.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from agentgym.evals.statistics import wilson_interval

ROOT = Path(__file__).resolve().parent.parent.parent
ARMS = ("gigpo", "grpo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run."""

    recipe: str
    changes: tuple[str, ...]
    arm: str
    seed: int
    base: float | None
    """Held-out success of the pretrained model, if the recipe evaluates it."""
    before: float
    """Held-out success after the demonstrations, if there are any, and before RL."""
    after: float
    curve: tuple[float, ...]
    """Success on the training tasks of each step."""
    num_eval: int
    num_trajectories: int
    wall_s: float
    processor_s: float
    commit: str
    date: str


def train(recipe: str, changes: Sequence[str], arm: str, seed: int) -> Run:
    """Train once, in a separate process."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        command = [sys.executable, "-m", "agentgym", "train", recipe, "--run-dir", str(folder), "--json"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*command, f"seed={seed}", f"credit.estimator={arm}", *changes],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"the run {arm}, seed {seed} ended with exit code {done.returncode}")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = json.loads(done.stdout)
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return Run(
        recipe=recipe,
        changes=tuple(changes),
        arm=arm,
        seed=seed,
        base=result["success_base"],
        before=result["success_before"],
        after=result["success_after"],
        curve=tuple(row["success"] for row in rows if row["phase"] == "rl"),
        num_eval=config["eval"]["num_episodes"],
        num_trajectories=result["num_trajectories"],
        wall_s=result["wall_s"],
        processor_s=used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime,
        commit=_commit(),
        date=datetime.now(UTC).date().isoformat(),
    )


def page(runs: Sequence[Run]) -> str:
    """Return the results as Markdown."""
    first = runs[0]
    lines = [
        f"# `{first.recipe}`",
        "",
        f"Held-out success on {first.num_eval} tasks, sampled at temperature 1, with 95 % Wilson intervals. "
        f"Measured by `python benchmarks/smollm2/learning.py --recipe {first.recipe}"
        f"{' -- ' + ' '.join(first.changes) if first.changes else ''}`.",
        "",
        "| estimator | seed | base model | before RL | after RL | rollouts | processor minutes | measured |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        rates = [_rate(value, run.num_eval) for value in (run.base, run.before, run.after)]
        lines.append(
            f"| {run.arm} | {run.seed} | {' | '.join(rates)} | {run.num_trajectories:,} "
            f"| {run.processor_s / 60:.1f} | {run.commit}, {run.date} |"
        )
    lines.append("")
    for arm in dict.fromkeys(run.arm for run in runs):
        mine = [run for run in runs if run.arm == arm]
        rise = fmean(run.after - run.before for run in mine)
        seeds = "1 seed" if len(mine) == 1 else f"{len(mine)} seeds"
        lines.append(
            f"* {arm}, mean of {seeds}: {fmean(run.before for run in mine):.2f} before RL, "
            f"{fmean(run.after for run in mine):.2f} after ({rise:+.2f}). Success by step: "
            + "; ".join(" ".join(f"{value:.2f}" for value in run.curve) for run in mine)
            + "."
        )
    lines += ["", f"Machine: {_machine()}."]
    return "\n".join(lines) + "\n"


def _rate(success: float | None, num_tasks: int) -> str:
    if success is None:
        return "–"
    interval = wilson_interval(round(success * num_tasks), num_tasks)
    return f"{success:.2f} ({interval.low:.2f} to {interval.high:.2f})"


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {os.cpu_count()} cores"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output", type=Path, required=True, help="without suffix: .json and .md are written")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    options.seeds = [*dict.fromkeys(options.seeds)]  # a seed that is given twice is one seed
    stored = options.output.with_suffix(".json")
    runs = [Run(**row) for row in json.loads(stored.read_text(encoding="utf-8"))] if stored.is_file() else []
    known = {(run.recipe, tuple(run.changes), run.arm, run.seed) for run in runs}
    for seed in options.seeds:
        for arm in options.arms:
            if (options.recipe, tuple(options.changes), arm, seed) in known:
                continue
            runs.append(train(options.recipe, options.changes, arm, seed))
            stored.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n", encoding="utf-8")
            options.output.with_suffix(".md").write_text(page(runs), encoding="utf-8")
    print(page(runs))


if __name__ == "__main__":
    main()
