"""A tiny model learns to see, beside a blind control that must not: success over seeds, and the curves.

    OMP_NUM_THREADS=1 python benchmarks/seeing/learning.py run --seeds 0 1 2
    OMP_NUM_THREADS=1 python benchmarks/seeing/learning.py report --seeds 0 1 2
    OMP_NUM_THREADS=1 python benchmarks/seeing/learning.py run --recipe see-maze --runs runs/maze --seeds 0

Every run is ``agentgym train RECIPE`` in a process of its own. The control's pictures are white
(``env.kwargs.blank=true``), in its demonstrations, training and evaluations alike. Chance is one of 16 cells, or what
random moves reach in the maze (``agentgym eval agentgym/VisualMaze-v0 size=3 picture=96 --policy random``). The
processor time is that of the whole process: demonstrations, warm start, RL and evaluations. Finished runs are not run
again.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

from agentgym.evals.statistics import seeds_text
from agentgym.rollout.record import read_json_lines

ARMS = {"seeing": [], "blind": ["env.kwargs.blank=true"]}
COLOURS = {"seeing": "#1f6feb", "blind": "#999999"}
CHANCE = {"see-tiny": 1 / 16, "see-maze": 0.173}
NAMES = {"see-tiny": "learning", "see-maze": "maze"}
"""Names of a recipe's files of results."""
BIN_STEPS = 5
"""Steps that are averaged into a point of a curve."""
COSTS = "costs.json"


def run_once(recipe: str, arm: str, seed: int, runs: Path, changes: Sequence[str]) -> None:
    """Train one arm with one seed, unless its run has finished."""
    run_dir = runs / f"{arm}-{seed}"
    if (run_dir / COSTS).is_file():
        return
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["-m", "agentgym", "train", recipe, f"seed={seed}", *ARMS[arm], *changes, "--run-dir", str(run_dir)]
    subprocess.run([sys.executable, *command, "--json"], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (run_dir / COSTS).write_text(json.dumps({"processor_s": round(spent, 1)}), encoding="utf-8")


def result_row(run_dir: Path, arm: str, seed: int) -> dict[str, Any]:
    """Return the results of one run."""
    metrics = read_json_lines(run_dir / "metrics.jsonl")
    before, after = (row for row in metrics if row["phase"] == "eval")
    steps = [row for row in metrics if row["phase"] == "rl"]
    return {
        "arm": arm,
        "seed": seed,
        "success_before": before["success"],
        "success_after": after["success"],
        "train_success": [round(row["success"], 4) for row in steps],
        "invalid_share_last": round(steps[-1]["invalid_share"], 4),
        "logprob_gap_max": max(row["logprob_gap_max"] or 0.0 for row in steps),
        **json.loads((run_dir / COSTS).read_text(encoding="utf-8")),
    }


def plot(rows: Sequence[dict[str, Any]], path: Path, chance: float) -> None:
    """Plot success against steps: each seed, and the mean of each arm."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3))
    for arm, colour in COLOURS.items():
        curves: list[list[float]] = []
        for row in (row for row in rows if row["arm"] == arm):
            values = row["train_success"]
            curves.append([fmean(values[at : at + BIN_STEPS]) for at in range(0, len(values), BIN_STEPS)])
            steps = [BIN_STEPS * (at + 0.5) for at in range(len(curves[0]))]
            axis.plot(steps, curves[-1], color=colour, linewidth=0.7, alpha=0.6)
        if curves:
            axis.plot(steps, [fmean(of) for of in zip(*curves, strict=True)], color=colour, linewidth=2, label=arm)
    axis.axhline(chance, color="#cc3333", linewidth=0.8, linestyle=":", label="chance")
    axis.set(ylim=(0, 1), xlabel="RL steps", ylabel="success while training")
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def report(recipe: str, runs: Path, seeds: Sequence[int], out: Path, origin: dict[str, str]) -> None:
    """Write ``learning.json``, ``learning.md`` and ``learning.svg``, or ``maze.*``, from finished runs."""
    name, chance = NAMES[recipe], CHANCE[recipe]
    pairs = [(arm, seed) for arm in ARMS for seed in seeds if (runs / f"{arm}-{seed}" / COSTS).is_file()]
    rows = [result_row(runs / f"{arm}-{seed}", arm, seed) for arm, seed in pairs]
    lines = ["| arm | seeds | before RL | after RL | processor time |", "|---|---|---|---|---|"]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        mine = [row for row in rows if row["arm"] == arm]
        before, after = (seeds_text([row[f"success_{when}"] for row in mine]) for when in ("before", "after"))
        cost = fmean(row["processor_s"] for row in mine)
        lines.append(f"| {arm} | {', '.join(str(row['seed']) for row in mine)} | {before} | {after} | {cost:.0f} s |")
    made = f"Made at: machine {origin['machine']}; {origin['date']}; commit {origin['commit']}."
    text = "\n".join(lines) + f"\n\nChance: {chance:.1%}. {made}\n"
    (out / f"{name}.json").write_text(json.dumps({**origin, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    (out / f"{name}.md").write_text(text + f"\n![success against steps]({name}.svg)\n", encoding="utf-8")
    plot(rows, out / f"{name}.svg", chance)
    print(text)


def main() -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["run", "report"])
    parser.add_argument("--recipe", choices=[*NAMES], default="see-tiny")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--change", nargs="*", default=[], metavar="KEY=VALUE", help="of the recipe, in every run")
    parser.add_argument("--runs", type=Path, default=Path("runs/seeing"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder of the results")
    parser.add_argument("--commit", default="", help="commit of the runs, if it is not the current one")
    options = parser.parse_args()
    seeds = [*dict.fromkeys(options.seeds)]
    if options.verb == "run":
        for seed in seeds:
            for arm in ARMS:
                run_once(options.recipe, arm, seed, options.runs, options.change)
        return
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    machine = f"{platform.machine()}, one thread of a busy machine with two cores"
    origin = {"machine": machine, "date": date.today().isoformat(), "commit": options.commit or head.stdout.strip()}
    report(options.recipe, options.runs, seeds, options.out, origin)


if __name__ == "__main__":
    main()
