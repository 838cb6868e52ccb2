"""Rollout strategies against the plain run, from the same warm starts, at equal sampled tokens.

    python benchmarks/strategies/compare.py --output benchmarks/strategies/scarce \
        --arms plain vade knapsack dars scaling_inter
    python benchmarks/strategies/compare.py --output benchmarks/strategies/branches \
        --arms plain arpo arpo_hard retry retry_r3l retry_hint hints replay echo distill distill_alone
    python benchmarks/strategies/compare.py --arms plain vade --seeds 0 --steps 2 --every 1 --episodes 8 --output OUT \
        -- sft.num_demos=60

Held-out success is measured every few steps. Each arm's curve is read at the number of sampled tokens that all arms of
its seed reached, between measurements in proportion. Success while training would not do: strategies choose their
tasks. Runs that are in ``OUTPUT.json`` are kept. What follows ``--`` changes the recipe.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import numpy as np

from agentgym.evals.statistics import seeds_text
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

ROOT = Path(__file__).resolve().parent.parent.parent
WORLD = ("sft.num_demos=2000", "groups_per_step=4", "optimizer.lr=3e-4", "env.num_train_tasks=128")
"""A weak start (about one success in ten), so most groups fail as a whole, and tasks that come around again."""
ARPO = 'strategy.branching={"kind": "arpo", "log_vocabulary": 6.93}'
RETRY = 'strategy.branching={"kind": "retry"}'
DISTILL = 'loss.regularisers=[{"kind": "distill", "teacher": "TEACHER", "coef": 0.5}]'
ARMS = {
    "plain": (),
    "vade": ('strategy.tasks={"kind": "vade", "pool": 128}',),
    "knapsack": ('strategy.budget={"kind": "knapsack", "low": 4, "high": 24}',),
    "dars": ('strategy.budget={"kind": "dars", "high": 24}',),
    "spo": ('strategy.tasks={"kind": "spo", "pool": 128}',),
    "dots": ('strategy.tasks={"kind": "dots", "pool": 128}',),
    "vas": ('strategy.tasks={"kind": "vas"}',),
    "xrpo": ('strategy.budget={"kind": "xrpo", "low": 4, "high": 24}',),
    "extending": ('strategy.horizon={"kind": "extending", "start": 6, "more": 4, "most": 16}',),
    "scaling_inter": ('strategy.horizon={"kind": "scaling_inter", "rounds": [6, 10, 16], "steps": 20}',),
    "arpo": (ARPO,),
    "arpo_hard": (ARPO, 'credit.modulators=[{"kind": "shared_prefix"}]'),
    "retry": (RETRY,),
    "retry_r3l": (RETRY, 'credit.modulators=[{"kind": "r3l_pivot"}]'),
    "retry_hint": ('strategy.branching={"kind": "retry", "num_hints": 1}',),
    "hints": ('strategy.guidance={"kind": "fading", "most": 4}',),
    "replay": ('strategy.replay={"kind": "success"}',),
    "spear": ('strategy.replay={"kind": "spear", "warmup_steps": 20}',),
    "cooling": ('schedules=[{"key": "sampling.temperature", "from": 1.2, "to": 0.8, "steps": 60}]',),
    "echo": ("loss.echo=0.05",),
    "distill": (DISTILL,),
    "distill_alone": (DISTILL, "loss.weight=0", "zero_variance_filter=off"),
}
TEACHER = ("num_steps=150", "groups_per_step=8")
"""The teacher of ``distill``: a longer plain run from the same start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run."""

    arm: str
    seed: int
    changes: tuple[str, ...]
    tokens: tuple[float, ...]
    """Tokens sampled before each measurement."""
    success: tuple[float, ...]
    """Held-out success at each measurement."""
    dropped: float
    """Share of groups that taught nothing."""
    episodes: float
    num_tasks: float
    """Different tasks that were played."""
    wall_s: float
    commit: str
    date: str


def start(seed: int, changes: Sequence[str], folder: Path) -> Path:
    """Return the folder of a model after its warm start, which all arms share."""
    if not (folder / "model").is_dir():
        train(apply_overrides(load_recipe("household-long"), [*WORLD, *changes, f"seed={seed}", "num_steps=0"]), folder)
    return folder / "model"


def teacher(seed: int, changes: Sequence[str], model: Path, folder: Path) -> Path:
    """Return the folder of a model that was trained for longer, which all arms of a seed that have a teacher share."""
    if not (folder / "model").is_dir():
        overrides = [
            *WORLD,
            *TEACHER,
            *changes,
            f"seed={seed}",
            "sft.num_demos=0",
            f"model.path={json.dumps(str(model))}",
        ]
        train(apply_overrides(load_recipe("household-long"), overrides), folder)
    return folder / "model"


def run_arm(arm: str, seed: int, options: argparse.Namespace, model: Path, folder: Path) -> Run:
    """Train one arm from a warm start."""
    of_arm = list(ARMS[arm])
    if any("TEACHER" in change for change in of_arm):
        taught_by = teacher(seed, options.changes, model, folder.parent / f"teacher-{seed}")
        of_arm = [change.replace("TEACHER", str(taught_by)) for change in of_arm]
    overrides = [
        *WORLD,
        *options.changes,
        f"seed={seed}",
        f"num_steps={options.steps}",
        f"eval.every={options.every}",
        f"eval.num_episodes={options.episodes}",
        "sft.num_demos=0",
        f"model.path={json.dumps(str(model))}",
        *of_arm,
    ]
    config = apply_overrides(load_recipe("household-long"), overrides)
    result = train(config, folder)
    metrics = read_json_lines(folder / "metrics.jsonl")
    steps = [row for row in metrics if row["phase"] == "rl"]
    evaluations = {row["step"]: row["success"] for row in metrics if row["phase"] == "eval"}
    sampled = np.concatenate([[0.0], np.cumsum([row["sampled_tokens"] for row in steps])])
    return Run(
        arm=arm,
        seed=seed,
        changes=tuple(options.changes),
        tokens=tuple(float(sampled[step]) for step in sorted(evaluations)),
        success=tuple(evaluations[step] for step in sorted(evaluations)),
        dropped=fmean(row["num_dropped_groups"] for row in steps) / config.groups_per_step,
        episodes=float(result.num_trajectories),
        num_tasks=steps[-1]["num_tasks_played"],
        wall_s=result.wall_s,
        commit=commit(),
        date=datetime.now(UTC).date().isoformat(),
    )


def commit() -> str:
    """Return the commit that is measured."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def at_equal_tokens(runs: Sequence[Run]) -> dict[tuple[str, int], float]:
    """Return each run's held-out success at the number of tokens that all runs of its seed reached."""
    found = {}
    for seed in {run.seed for run in runs}:
        own = [run for run in runs if run.seed == seed]
        budget = min(run.tokens[-1] for run in own)
        found |= {(run.arm, seed): float(np.interp(budget, run.tokens, run.success)) for run in own}
    return found


def report(runs: Sequence[Run]) -> str:
    """Return the results as Markdown."""
    success = at_equal_tokens(runs)
    seeds = sorted({run.seed for run in runs})
    lines = [
        "# Rollout strategies at equal sampled tokens",
        "",
        "Held-out success of the household with a weak start, sampled at temperature 1. Differences to `plain` are "
        "taken seed by seed, with 95 % intervals over seeds. Measured by `python benchmarks/strategies/compare.py`.",
        "",
        "| arm | before | at equal tokens, by seed | mean | minus plain | idle groups | episodes | tasks |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm in dict.fromkeys(run.arm for run in runs):
        own = [run for run in runs if run.arm == arm]
        values = [success[arm, run.seed] for run in own]
        ahead = [success[arm, run.seed] - success["plain", run.seed] for run in own if ("plain", run.seed) in success]
        lines.append(
            f"| {arm} | {fmean(run.success[0] for run in own):.3f} | {', '.join(f'{value:.3f}' for value in values)} "
            f"| {fmean(values):.3f} | {seeds_text(ahead, sign=True) if ahead and arm != 'plain' else ''} "
            f"| {fmean(run.dropped for run in own):.0%} | {fmean(run.episodes for run in own):,.0f} "
            f"| {fmean(run.num_tasks for run in own):.0f} |"
        )
    budgets = [min(run.tokens[-1] for run in runs if run.seed == seed) for seed in seeds]
    made = sorted({(run.commit, run.date) for run in runs})
    lines += [
        "",
        f"Seeds {', '.join(map(str, seeds))}; {', '.join(f'{budget:,.0f}' for budget in budgets)} sampled tokens each. "
        "Idle groups taught nothing, since all their episodes earned the same. "
        f"Machine: {machine()}; {', '.join(f'commit {at}, {day}' for at, day in made)}.",
    ]
    return "\n".join(lines) + "\n"


def machine() -> str:
    """Return the processor's name."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{platform.machine()}, {next(named, 'unknown')}"


def main() -> None:
    """Measure what is missing, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=15, help="steps between measurements")
    parser.add_argument("--episodes", type=int, default=200, help="held-out episodes of a measurement")
    parser.add_argument("--output", type=Path, required=True, help="results, without .json and .md")
    parser.add_argument("changes", nargs="*", help="after --: KEY=VALUE of the recipe")
    options = parser.parse_args()
    options.seeds = [*dict.fromkeys(options.seeds)]  # a seed that is given twice is one seed
    path = options.output.with_suffix(".json")
    saved = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    runs = [Run(**{**row, **{name: tuple(row[name]) for name in ("changes", "tokens", "success")}}) for row in saved]
    with tempfile.TemporaryDirectory() as scratch:
        for seed in options.seeds:
            for arm in options.arms:
                if any((run.arm, run.seed, run.changes) == (arm, seed, tuple(options.changes)) for run in runs):
                    continue
                model = start(seed, options.changes, Path(scratch) / f"start-{seed}")
                runs.append(run_arm(arm, seed, options, model, Path(scratch) / f"{arm}-{seed}"))
                path.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n", encoding="utf-8")
                options.output.with_suffix(".md").write_text(report(runs), encoding="utf-8")
    print(report(runs))


if __name__ == "__main__":
    main()
