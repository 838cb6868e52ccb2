"""Learning of a tiny text model on MiniWoB++: held-out success per task before training, after the warm start, over RL.

    OMP_NUM_THREADS=1 python benchmarks/gui/miniwob_learning.py run --seeds 0 1
    python benchmarks/gui/miniwob_learning.py report --seeds 0 1

``run`` does the warm start of the recipe ``miniwob-demo``, then its RL from those weights. It evaluates held-out tasks
with the untrained model, after the warm start, every ``eval.every`` steps and at the end, always with the same seeds
of the tasks and of the sampling. ``report`` writes ``miniwob-learning.json`` and ``miniwob-learning.svg``.
Finished runs are not run again, and a run that was stopped resumes from its last checkpoint. Further arguments are
overrides of the recipe.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from agentgym.env.env import Env
from agentgym.evals.episodes import read_rows
from agentgym.evals.runner import evaluate
from agentgym.evals.statistics import wilson_interval
from agentgym.registry import make
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.record import read_json_lines
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.config.overrides import apply_overrides, load_config, to_dict
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.models.model import load_model, save_model
from agentgym.trainers.models.tiny import build_model
from agentgym.trainers.placement.policy import open_policy
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train
from agentgym.types import Status

RECIPE = "miniwob-demo"
UNTRAINED, WARM = -1, 0
"""Places on the curve; others are steps of RL."""


# ----------------------------------------------------------------------------------------------------------- running


def run(options: argparse.Namespace) -> None:
    """Run everything that has not finished yet."""
    for seed in options.seeds:
        config = replace(apply_overrides(load_recipe(RECIPE), options.overrides), seed=seed)
        start = options.runs / f"start-{seed}"
        run_once(replace(config, num_steps=0), start)
        from_start = replace(
            config, sft=replace(config.sft, num_demos=0), model=replace(config.model, path=str(start / "model"))
        )
        run_once(from_start, options.runs / f"learnt-{seed}")
        asyncio.run(play_untrained(config, start, options.runs / f"untrained-{seed}"))


def run_once(config: TrainConfig, run_dir: Path) -> None:
    """Train, or resume, or do nothing if the run has finished."""
    if not (run_dir / "model").is_dir():
        train(config, run_dir, resume=(run_dir / "config.json").exists())


async def play_untrained(config: TrainConfig, start: Path, folder: Path) -> None:
    """Evaluate the untrained model on the held-out tasks; the trainer evaluates from the warm start on."""
    if (folder / "eval" / "summary.json").exists():
        return
    _, tokenizer = load_model(start / "model")
    save_model(build_model(tokenizer, config.model, derive_seed(config.seed, "model")), tokenizer, folder / "model")

    def make_env() -> Env:
        return make(config.env.id, **config.env.kwargs)

    tasks = make_env().tasks(config.eval.split)[: config.eval.num_episodes]
    pool = EnvPool(make_env, config.group.num_envs)
    policy = open_policy(folder / "model", num_slots=config.group.num_envs)
    await evaluate(
        tasks,
        pool,
        policy.agents(replace(config.sampling, temperature=config.eval.temperature)),
        out_dir=folder / "eval",
        suite_or_env=config.env.id,
        policy="untrained",
        seed=derive_seed(config.seed, "evaluation"),
        group_config=GroupConfig(group_size=1, min_valid=1, num_envs=config.group.num_envs),
    )
    await policy.engine.close()
    await pool.close()


# --------------------------------------------------------------------------------------------------------- reporting


def evaluations(start: Path, folder: Path, num_steps: int) -> dict[int, Path]:
    """Folders of a run's evaluations by their place on the curve."""
    found = {UNTRAINED: start / "eval", WARM: folder / "eval" / "before"}
    for path in sorted((folder / "eval").glob("step-*")):
        found[int(path.name.removeprefix("step-"))] = path
    return found | {num_steps: folder / "eval" / "after"}


def counts(folder: Path) -> dict[str, tuple[int, int]]:
    """Successes and episodes by task, of those that are evidence about the policy."""
    made: dict[str, tuple[int, int]] = {}
    for row in read_rows(folder):
        if Status(row["status"]).is_evidence:
            name = str(row["task_id"]).rpartition("-")[0]
            won, played = made.get(name, (0, 0))
            made[name] = (won + bool(row["success"]), played + 1)
    return made


def result(start: Path, folder: Path, seed: int) -> dict[str, Any]:
    """Return the results of one run."""
    config = load_config(folder / "config.json")
    metrics = [row for row in read_json_lines(folder / "metrics.jsonl") if row["phase"] == "rl"]
    curve = {at: counts(path) for at, path in evaluations(start, folder, config.num_steps).items()}
    return {
        "seed": seed,
        "curve": [{"step": at, "tasks": tasks} for at, tasks in curve.items()],
        "train_success": [round(row["success"], 4) for row in metrics],
        "logprob_gap_max": max(row["logprob_gap_max"] or 0.0 for row in metrics),
        "rl_s": round(sum(value for row in metrics for name, value in row.items() if name.startswith("time/"))),
    }


def pooled(rows: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, tuple[int, int]]]:
    """Successes and episodes by place on the curve and task, all seeds together; task ``all`` is their sum."""
    total: dict[int, dict[str, tuple[int, int]]] = {}
    for row in rows:
        for point in row["curve"]:
            here = total.setdefault(point["step"], {})
            for task, (won, played) in point["tasks"].items():
                for name in (task, "all"):
                    before = here.get(name, (0, 0))
                    here[name] = (before[0] + won, before[1] + played)
    return {at: {"all": total[at].pop("all"), **dict(sorted(total[at].items()))} for at in sorted(total)}


def rises(rows: Sequence[Mapping[str, Any]], task: str) -> int:
    """Seeds in which a task's success was higher at the end than after the warm start."""

    def share(row: Mapping[str, Any], at: int) -> float:
        won, played = next(point["tasks"][task] for point in row["curve"] if point["step"] == at)
        return float(won / played)

    return sum(share(row, row["curve"][-1]["step"]) > share(row, WARM) for row in rows)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return held-out success per task as a Markdown table."""
    curve = pooled(rows)
    last = max(curve)

    def cell(at: int, task: str) -> str:
        won, played = curve[at][task]
        return f"{won / played:.2f}"

    lines = [
        "| task | untrained | after the warm start | after RL | 95 % intervals | seeds in which it rose |",
        "|---|---|---|---|---|---|",
    ]
    for task in curve[last]:
        spans = [wilson_interval(*curve[at][task]) for at in (WARM, last)]
        said = ", ".join(f"{span.low:.2f} to {span.high:.2f}" for span in spans)
        rose = "" if task == "all" else f"{rises(rows, task)} of {len(rows)}"
        lines.append(
            f"| {task} | {cell(UNTRAINED, task)} | {cell(WARM, task)} | {cell(last, task)} | {said} | {rose} |"
        )
    return "\n".join(lines)


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Held-out success over RL steps, a panel per task: seeds, all of them together with the 95 % interval."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "agentgym"
    import matplotlib.pyplot as plt

    curve = pooled(rows)
    steps = [at for at in curve if at >= WARM]
    tasks = list(curve[WARM])
    num_columns = 3 if len(tasks) == 9 else 4
    num_rows = -(-len(tasks) // num_columns)
    size = (2.5 * num_columns, 2.0 * num_rows + 0.4)
    figure, axes = plt.subplots(num_rows, num_columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[len(tasks) :]:
        axis.set_visible(False)
    for at, (axis, task) in enumerate(zip(axes.flat, tasks, strict=False)):
        spans = [wilson_interval(*curve[step][task]) for step in steps]
        together = [won / played for won, played in (curve[step][task] for step in steps)]
        axis.axhline(curve[UNTRAINED][task][0] / curve[UNTRAINED][task][1], color="#999999", linestyle=":")
        for row in rows if task != "all" else ():
            points = {point["step"]: point["tasks"][task] for point in row["curve"]}
            axis.plot(steps, [points[step][0] / points[step][1] for step in steps], color="#1f6feb", lw=0.6, alpha=0.6)
        axis.plot(steps, together, color="#1f6feb", linewidth=1.8)
        axis.fill_between(
            steps, [span.low for span in spans], [span.high for span in spans], color="#1f6feb", alpha=0.18, linewidth=0
        )
        axis.set_title(task, fontsize=10)
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.25)
        axis.tick_params(labelsize=8)
        if at % num_columns == 0:
            axis.set_ylabel("held-out success", fontsize=8)
        if at >= len(tasks) - num_columns:
            axis.set_xlabel("RL steps", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def report(options: argparse.Namespace) -> None:
    """Write the results of the runs that are there."""
    rows = [
        result(options.runs / f"untrained-{seed}", folder, seed)
        for seed in dict.fromkeys(options.seeds)
        if ((folder := options.runs / f"learnt-{seed}") / "model").is_dir()
    ]
    if not rows:
        raise SystemExit(f"no finished run in {options.runs}; make them with: miniwob_learning.py run")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    said = {
        "machine": f"{platform.machine()}, {_cpu()}",
        "date": date.today().isoformat(),
        "commit": options.commit or commit.stdout.strip(),
        "command": " ".join(["miniwob_learning.py run --seeds", *map(str, options.seeds), *options.overrides]),
        "config": to_dict(apply_overrides(load_recipe(RECIPE), options.overrides)),
        "places": {"untrained": UNTRAINED, "warm start": WARM},
        "rows": rows,
    }
    text = json.dumps(said, indent=1)
    (options.out / "miniwob-learning.json").write_text(text + "\n", encoding="utf-8")
    plot(rows, options.out / "miniwob-learning.svg")
    print(table(rows))


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


def main() -> None:
    """Run, or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "report"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--runs", type=Path, default=Path("runs/miniwob-learning"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder of the results")
    parser.add_argument("--commit", default="", help="commit of the runs, if it is not the current one")
    parser.add_argument("overrides", nargs="*", help="key=value of the recipe")
    options = parser.parse_intermixed_args()
    run(options) if options.command == "run" else report(options)


if __name__ == "__main__":
    main()
