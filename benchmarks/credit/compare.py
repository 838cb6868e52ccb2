r"""Credit side by side: the same warm starts, tasks, seeds and numbers of rollouts for every arm.

    python benchmarks/credit/compare.py run --worlds easy hard --seeds 0 1 2
    python benchmarks/credit/compare.py report --worlds easy hard --name household
    python benchmarks/credit/compare.py run --worlds scarce --arms grpo grpo+penalty grpo+penalty+gate --steps 60
    python benchmarks/credit/compare.py report --worlds scarce --arms grpo grpo+penalty grpo+penalty+gate --name phantom
    python benchmarks/credit/compare.py run --worlds code --arms grpo grpo+gate --steps 50
    python benchmarks/credit/compare.py report --worlds code --arms grpo grpo+gate --name code
    python benchmarks/credit/compare.py run --worlds wiki --arms grpo gigpo igpo --steps 80
    python benchmarks/credit/compare.py report --worlds wiki --arms grpo gigpo igpo --name wiki
    python benchmarks/credit/compare.py run --worlds easy --arms grpo riskpo copo grpo+ares reg-grpo grpo+dph
    python benchmarks/credit/compare.py report --worlds easy \
        --arms grpo riskpo copo grpo+ares reg-grpo grpo+dph --name families

For every world and seed the warm start is run once; from its weights every arm trains for the same number of steps of
the same number of episodes. Sampled success on held-out tasks is measured before and after with the same seeds; the
success of the training episodes gives the curve in between. Finished runs are not run again, so an interrupted
benchmark resumes, and several processes can share the work by seeds or worlds. ``report --earlier FILE``
takes the rows it does not find from earlier results; each row says where and at which commit it was made.

A further world is one entry of ``WORLDS``: overrides of the recipe that name its environment.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

from agentgym.evals.statistics import seeds_text, student_interval
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides, to_dict
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

RECIPE = "household-long"
WORLDS: dict[str, list[str]] = {
    "easy": [],
    "hard": ["env.kwargs.num_receptacles=8", "env.kwargs.num_objects=6", "env.kwargs.max_turns=24"],
    "scarce": ["sft.num_demos=2000", "groups_per_step=4", "optimizer.lr=3e-4"],
    "code": [
        "env.id=agentgym/Code-v0",
        'env.kwargs={"level": 0, "sandbox": "process", "max_turns": 4, '
        '"rewards": {"edit_made": 0.5, "tests_collected": 0.5}}',
        "model.vocab_size=768",
        "sft.num_demos=1000",
        "sft.num_epochs=3",
        "sft.noise=0",
        "sampling.max_new_tokens=48",
        "optimizer.lr=3e-4",
    ],
    "maze": [
        "env.id=agentgym/Maze-v0",
        'env.kwargs={"max_turns": 24, "step_cost": 0.0}',
        "model.vocab_size=512",
        "sft.num_demos=2000",
        "sft.num_epochs=1",
    ],
    "shop": [
        "env.id=agentgym/WebShop-v0",
        'env.kwargs={"stock": "kiosk", "num_products": 200, "interface": "text", "max_turns": 8}',
        "model.vocab_size=768",
        "model.max_context_tokens=1024",
        "sft.num_demos=3000",
        "sft.num_epochs=2",
        "sft.noise=0.1",
        "optimizer.lr=3e-4",
    ],
    "wiki": [
        "env.id=agentgym/WikiWorld-v0",
        'env.kwargs={"num_pages": 16, "num_worlds": 0, "hops": [1, 2], "vocabulary": 32, "aliases": 0.0, '
        '"stale_pages": 0.0, "distractors": 0.0, "fillers": 0, "max_results": 2, "max_turns": 6, '
        '"relations": ["author", "birthplace", "mayor", "employer", "founder", "country"]}',
        "columns.answer_template=answer: {answer}",
        "model.vocab_size=512",
        "sft.num_demos=2000",
        "sft.num_epochs=2",
        "sft.noise=0.1",
    ],
    "planner": [
        "credit.estimator=m_grpo",
        "env.id=agentgym/SearchPlanner-v0",
        'env.kwargs={"max_turns": 5, "env_kwargs": {"num_pages": 16, "num_worlds": 0, "hops": [1, 1], '
        '"vocabulary": 32, "aliases": 0.0, "stale_pages": 0.0, "distractors": 0.0, "fillers": 0, "max_results": 2, '
        '"relations": ["author", "birthplace", "mayor"]}}',
        "model.vocab_size=512",
        "sft.num_demos=1500",
        "sft.num_epochs=2",
        "sft.noise=0.1",
    ],
    "miniwob": [
        "env.id=agentgym/MiniWoB-v0",
        'env.kwargs={"task": ["click-test-2", "click-button", "click-link", "click-tab", "enter-text"], '
        '"brief": true, "actions": ["minimal"], "max_turns": 4}',
        "model.vocab_size=768",
        "sft.num_demos=1500",
        "sft.num_epochs=3",
        "sft.noise=0.1",
        "group.num_envs=8",
        "optimizer.lr=3e-4",
    ],
}
"""Tasks of a comparison, by name.

* ``easy``: the recipe's kitchen. ``hard``: a larger one with longer errands.
* ``scarce``: the first with a third of the demonstrations, smaller steps and a higher learning rate. Most groups
  fail as a whole there, so a shaped reward can do harm.
* ``code``: functions to write. An edit that can be loaded earns as much as one that passes the hidden tests.
* ``maze``: a game in which the agent sees only the nearest walls, and every cell is an anchor.
* ``shop``: WebShop's pages and reward, with a stock small enough to read.
* ``wiki``: questions of one and two hops. Every task has its own encyclopedia, so the agent must search and read.
* ``planner``: questions of one hop in two parts. The planner searches and reads, and the solver answers from
  what was found. A lookup costs nothing: with 0.02 a lookup, groups that fail as a whole differ by their lookups
  alone, and the planner learns to conclude at once (success 0.26 before, 0.13 after 60 steps, one seed).
* ``miniwob``: five tasks of MiniWoB++ in Chromium, observed as elements, with two tools. The number of concurrent
  episodes fits the memory of a small machine.
"""

PENALTY = '{"kind": "invalid_call", "penalty": 0.1}'
GATE = '{"kind": "g_ra", "thresholds": [0.5]}'
ARMS: dict[str, list[str]] = {
    "grpo": ["credit.estimator=grpo"],
    "rloo": ["credit.estimator=rloo"],
    "gigpo": ["credit.estimator=gigpo"],
    "hgpo": ["credit.estimator=hgpo"],
    "gigpo+gate": ["credit.estimator=gigpo", f"credit.shapers=[{PENALTY}, {GATE}]"],
    "grpo+salt": ["credit.estimator=grpo", 'credit.modulators=[{"kind": "salt"}]'],
    "grpo+empg": ["credit.estimator=grpo", 'credit.modulators=[{"kind": "empg"}]'],
    "spo": ["credit.estimator=spo", "group.group_size=1", "group.min_valid=1", "groups_per_step=64"],
    "igpo": ["credit.estimator=igpo", 'credit.shapers=[{"kind": "information_gain"}]'],
    "grpo+gate": ["credit.estimator=grpo", f"credit.shapers=[{GATE}]"],
    "grpo+penalty": ["credit.estimator=grpo", f"credit.shapers=[{PENALTY}]"],
    "grpo+penalty+gate": ["credit.estimator=grpo", f"credit.shapers=[{PENALTY}, {GATE}]"],
    "riskpo": ["credit.estimator=riskpo"],
    "copo": ["credit.estimator=copo"],
    "grpo+ares": ["credit.estimator=grpo", 'credit.shapers=[{"kind": "ares"}]'],
    "reg-grpo": ["credit.estimator=grpo", "loss.kind=reg_grpo"],
    "grpo+dph": [
        "credit.estimator=grpo",
        'strategy.replay={"kind": "start_samples"}',
        'loss.token_masks=[{"kind": "dph_samples"}]',
        'loss.regularisers=[{"kind": "dph"}]',
    ],
    "one-model": [],
    "frozen-solver": ["roles.solver.policy={start}"],
    "two-models": ["roles.solver.trained=true"],
}
"""The configurations that are compared; ``{start}`` is the folder of the warm start's model. Those with a penalty test
phantom advantages: a shaped reward without and with a gate. From ``riskpo`` to ``grpo+dph`` they are families of single
papers at their defaults. The last three are for ``planner``: one model plays both
parts, the warm start stays the solver, or the solver is a second trained model. Like ``igpo``, which needs tasks with
reference answers as ``wiki`` has them, they run only if named."""
FAMILIES = ("riskpo", "copo", "grpo+ares", "reg-grpo", "grpo+dph")
ONLY_IF_NAMED = ("igpo", *FAMILIES, "one-model", "frozen-solver", "two-models")

NUM_TRAIN_TASKS = 512
"""All arms train on the same pool of tasks, small enough that SPO's tracker sees a task again."""


def run_once(config: TrainConfig, run_dir: Path) -> None:
    """Train, or resume, or do nothing if the run has finished."""
    if not (run_dir / "model").is_dir():
        train(config, run_dir, resume=(run_dir / "config.json").exists())


def start_config(world: str, seed: int, changes: Sequence[str]) -> TrainConfig:
    """Return the configuration of the warm start alone."""
    return apply_overrides(load_recipe(RECIPE), [*WORLDS[world], f"seed={seed}", "num_steps=0", *changes])


def arm_config(world: str, arm: str, seed: int, start: Path, changes: Sequence[str]) -> TrainConfig:
    """Return the configuration of RL alone, from the warm start's weights."""
    model = json.dumps(str(start / "model"))
    overrides = [
        *WORLDS[world],
        f"seed={seed}",
        f"env.num_train_tasks={NUM_TRAIN_TASKS}",
        *(change.replace("{start}", model) for change in ARMS[arm]),
        *changes,
        "sft.num_demos=0",
        f"model.path={model}",
    ]
    return apply_overrides(load_recipe(RECIPE), overrides)


def run(options: argparse.Namespace) -> None:
    """Run everything that has not finished yet."""
    for world in options.worlds:
        for seed in options.seeds:
            start = options.runs / world / f"start-{seed}"
            run_once(start_config(world, seed, options.change), start)
            for arm in options.arms:
                config = arm_config(world, arm, seed, start, [f"num_steps={options.steps}", *options.change])
                run_once(config, options.runs / world / f"{arm}-{seed}")


def result_row(run_dir: Path, world: str, arm: str, seed: int) -> dict[str, Any]:
    """Return the results of one run."""
    metrics = read_json_lines(run_dir / "metrics.jsonl")
    before, after = (row for row in metrics if row["phase"] == "eval")
    steps = [row for row in metrics if row["phase"] == "rl"]
    return {
        "world": world,
        "arm": arm,
        "seed": seed,
        "success_before": before["success"],
        "success_after": after["success"],
        "after_low": after["success_low"],
        "after_high": after["success_high"],
        "return_before": round(before["mean_return"], 4),
        "return_after": round(after["mean_return"], 4),
        "mean_turns_after": after["mean_turns"],
        "rollouts_per_step": sum(value for name, value in steps[0].items() if name.startswith("status/")),
        "train_success": [round(row["success"], 4) for row in steps],
        "invalid_share": [round(row["invalid_share"], 4) for row in steps],
        "credited_share": 1 - fmean(row["zero_advantage_share"] for row in steps),
        "phantom_share": fmean(row.get("credit/phantom_share", 0.0) for row in steps),
        "anchor_share": fmean(row["anchor_share"] for row in steps),
        "logprob_gap_max": max(row["logprob_gap_max"] or 0.0 for row in steps),
        "rl_s": sum(value for row in steps for name, value in row.items() if name.startswith("time/")),
    }


def table(rows: Sequence[dict[str, Any]], arms: Sequence[str]) -> str:
    """Return one world's results as a Markdown table, with differences to the first arm paired by seed."""
    titles = f"| arm | held-out success | gain | while training | minus {arms[0]}'s | credited | phantom | turns |"
    lines = [titles, "|---|---|---|---|---|---|---|---|"]
    base = {row["seed"]: fmean(row["train_success"]) for row in rows if row["arm"] == arms[0]}
    for arm in arms:
        mine = [row for row in rows if row["arm"] == arm]
        ahead = [fmean(row["train_success"]) - base[row["seed"]] for row in mine if row["seed"] in base]
        gains = [row["success_after"] - row["success_before"] for row in mine]
        means = (fmean(row[name] for row in mine) for name in ("credited_share", "phantom_share", "mean_turns_after"))
        credited, phantom, turns = means
        lines.append(
            f"| {arm} | {seeds_text([row['success_after'] for row in mine])} | {seeds_text(gains, sign=True)} "
            f"| {seeds_text([fmean(row['train_success']) for row in mine])} "
            f"| {seeds_text(ahead, sign=True) if ahead else ''} | {credited:.0%} | {phantom:.1%} | {turns:.1f} |"
        )
    return "\n".join(lines)


def binned(values: Sequence[float], size: int) -> list[float]:
    """Return the means of ``size`` consecutive values each."""
    return [fmean(values[at : at + size]) for at in range(0, len(values), size)]


def plot(rows: Sequence[dict[str, Any]], arms: Sequence[str], path: Path, bin_steps: int) -> None:
    """Plot success against rollouts, a panel per arm: seeds, mean, and the first arm in grey.

    The band is the 95 % interval over seeds; of two seeds it is their range.
    """
    import matplotlib.pyplot as plt

    num_columns = min(5, len(arms))
    num_rows = -(-len(arms) // num_columns)
    size = (2.5 * num_columns, 2.1 * num_rows + 0.4)
    figure, axes = plt.subplots(num_rows, num_columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[len(arms) :]:
        axis.set_visible(False)
    for at, (axis, arm) in enumerate(zip(axes.flat, arms, strict=False)):
        for name, colour in ((arms[0], "#999999"), (arm, "#1f6feb")):
            mine = [row for row in rows if row["arm"] == name]
            curves = [binned(row["train_success"], bin_steps) for row in mine]
            middle = [(n + 0.5) * bin_steps * mine[0]["rollouts_per_step"] for n in range(len(curves[0]))]
            means = [fmean(values) for values in zip(*curves, strict=True)]
            axis.plot(middle, means, color=colour, linewidth=1.8 if name == arm else 1.2)
            if name == arm:
                for curve in curves:
                    axis.plot(middle, curve, color=colour, linewidth=0.6, alpha=0.6)
                low, high = [min(v) for v in zip(*curves, strict=True)], [max(v) for v in zip(*curves, strict=True)]
                if len(curves) > 2:  # an interval of two seeds says nothing; their range does
                    spans = [student_interval(values) for values in zip(*curves, strict=True)]
                    low, high = [max(0.0, span.low) for span in spans], [min(1.0, span.high) for span in spans]
                axis.fill_between(middle, low, high, color=colour, alpha=0.18, linewidth=0)
        axis.set_title(arm, fontsize=10)
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.25)
        axis.tick_params(labelsize=8)
        if at % num_columns == 0:
            axis.set_ylabel("success", fontsize=8)
        if at >= len(arms) - num_columns:
            axis.set_xlabel("rollouts", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def with_earlier(
    rows: Sequence[dict[str, Any]], earlier: Sequence[dict[str, Any]], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return the rows and, for requested results that they lack, the earlier rows, in the table's order."""
    have = {(row["world"], row["arm"], row["seed"]): row for row in earlier} | {
        (row["world"], row["arm"], row["seed"]): row for row in rows
    }
    wanted = [(w, arm, seed) for w in options.worlds for arm in options.arms for seed in options.seeds]
    return [have[key] for key in wanted if key in have]


def made_at(rows: Sequence[dict[str, Any]]) -> str:
    """Return the seeds, machine, date and commit of the rows as text."""
    seeds: dict[tuple[str, str, str], set[int]] = {}
    for row in rows:
        seeds.setdefault((row["machine"], row["date"], row["commit"]), set()).add(row["seed"])
    said = [
        f"seeds {', '.join(map(str, sorted(of)))}: machine {machine}; {day}; commit {commit}."
        for (machine, day, commit), of in seeds.items()
    ]
    return "Made at: " + " ".join(said) + "\n"


def report(options: argparse.Namespace) -> None:
    """Write ``NAME.json``, ``NAME.md`` and a plot per world from the runs that are there."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    origin = {
        "machine": f"{platform.machine()}, {_cpu()}",
        "date": date.today().isoformat(),
        "commit": options.commit or commit.stdout.strip(),
    }
    rows = [
        result_row(run_dir, world, arm, seed) | origin
        for world in options.worlds
        for arm in options.arms
        for seed in options.seeds
        if ((run_dir := options.runs / world / f"{arm}-{seed}") / "model").is_dir()
    ]
    if options.earlier:
        rows = with_earlier(rows, json.loads(options.earlier.read_text(encoding="utf-8"))["rows"], options)
    said = []
    for world in dict.fromkeys(row["world"] for row in rows):
        mine = [row for row in rows if row["world"] == world]
        arms = [arm for arm in options.arms if any(row["arm"] == arm for row in mine)]
        before = seeds_text([row["success_before"] for row in mine if row["arm"] == arms[0]])
        num_seeds, num_steps = len({row["seed"] for row in mine}), len(mine[0]["train_success"])
        about = (
            "means with 95 % intervals over seeds" if num_seeds > 1 else "one seed, which has no interval over seeds"
        )
        picture = f"{options.name}-{world}.svg"
        plot(mine, arms, options.out / picture, options.bin_steps)
        said.append(
            f"## {world}\n\n{table(mine, arms)}\n\nBefore: {before}. {num_seeds} seeds, {num_steps} "
            f"steps of {mine[0]['rollouts_per_step']:.0f} rollouts each; {about}. "
            "While training: mean success of all training episodes, the area under the curve. "
            f"`{' '.join(WORLDS[world]) or 'the recipe as it is'}`\n\n![success against rollouts]({picture})\n"
        )
    arms = {arm: ARMS[arm] for arm in options.arms}
    worlds = {world: WORLDS[world] for world in options.worlds}
    common = {"recipe": to_dict(load_recipe(RECIPE)), "num_train_tasks": NUM_TRAIN_TASKS, "worlds": worlds}
    content = json.dumps({**common, "arms": arms, "rows": rows}, indent=1)
    (options.out / f"{options.name}.json").write_text(content + "\n", encoding="utf-8")
    (options.out / f"{options.name}.md").write_text("\n".join([*said, made_at(rows)]), encoding="utf-8")
    print("\n".join(said))


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def main() -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["run", "report"])
    parser.add_argument("--worlds", nargs="+", choices=list(WORLDS), default=list(WORLDS))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=[a for a in ARMS if a not in ONLY_IF_NAMED])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=80, help="RL steps of every arm")
    parser.add_argument("--change", nargs="*", default=[], metavar="KEY=VALUE", help="of the recipe, in every run")
    parser.add_argument("--bin-steps", type=int, default=10, help="steps averaged into a point of the curve")
    parser.add_argument("--runs", type=Path, default=Path("runs/credit"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder of the results")
    parser.add_argument("--name", default="household", help="name of the results")
    parser.add_argument("--earlier", type=Path, help="earlier results, for rows whose runs no longer exist")
    parser.add_argument("--commit", default="", help="commit of the runs, if it is not the current one")
    options = parser.parse_args()
    options.seeds = [*dict.fromkeys(options.seeds)]  # a seed that is given twice is one seed
    run(options) if options.verb == "run" else report(options)


if __name__ == "__main__":
    main()
