"""The planner's success against its lookups, for several costs of a lookup: AI-SearchPlanner's front, small.

    OMP_NUM_THREADS=1 python benchmarks/roles/pareto.py run --costs 0 0.01 0.03 0.1 --seeds 0
    python benchmarks/roles/pareto.py report --runs runs/pareto

Every run is ``agentgym train search-planner env.kwargs.cost=COST`` in a process of its own. The solver is the recipe's
script, so that the planner alone can fail. A point is the run's last evaluation: the share of held-out tasks answered
rightly, and the turns of the planner before it lets the solver answer. Finished runs are not run again.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

from agentgym.rollout.record import read_json_lines

CHANGES = "changes.json"
"""What a run was started with; in folders of runs that have ended."""


def run_once(cost: float, seed: int, runs: Path, changes: Sequence[str]) -> None:
    """Train with one cost and one seed, unless that run has finished."""
    run_dir = runs / f"cost-{cost:g}-{seed}"
    if (run_dir / CHANGES).is_file():
        return
    words = [f"seed={seed}", f"env.kwargs.cost={cost:g}", *changes]
    command = ["-m", "agentgym", "train", "search-planner", *words, "--run-dir", str(run_dir), "--json"]
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    (run_dir / CHANGES).write_text(json.dumps({"cost": cost, "seed": seed, "changes": list(changes)}), encoding="utf-8")


def result_row(run_dir: Path) -> dict[str, Any]:
    """Return the held-out success and lookups of one run, before and after RL."""
    row: dict[str, Any] = json.loads((run_dir / CHANGES).read_text(encoding="utf-8"))
    for when in ("before", "after"):
        episodes = read_json_lines(run_dir / "eval" / when / "episodes.jsonl")
        valid = [episode for episode in episodes if episode["success"] is not None]
        row[f"success_{when}"] = fmean(float(episode["success"]) for episode in valid)
        row[f"lookups_{when}"] = round(fmean(episode["num_turns"] - 1 for episode in valid), 3)
    return row


def front(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that no other row beats in success with as few lookups, by lookups.

    Example:
        >>> rows = [{"success_after": s, "lookups_after": n} for s, n in ((0.5, 1.0), (0.4, 2.0), (0.9, 3.0))]
        >>> [row["success_after"] for row in front(rows)]
        [0.5, 0.9]
    """
    ordered = sorted(rows, key=lambda row: (row["lookups_after"], -row["success_after"]))
    best = -1.0
    return [row for row in ordered if row["success_after"] > best and (best := row["success_after"]) is not None]


def _points(rows: Sequence[dict[str, Any]], when: str) -> tuple[list[float], list[float]]:
    return [row[f"lookups_{when}"] for row in rows], [row[f"success_{when}"] for row in rows]


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot success against lookups: a point a run, and the front."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3))
    blue = "#1f6feb"
    axis.plot(*_points(front(rows), "after"), color=blue, alpha=0.5)
    axis.scatter(*_points(rows, "after"), color=blue, label="after RL")
    axis.scatter(*_points(rows, "before"), color="#999999", label="before RL")
    for row, *point in zip(rows, *_points(rows, "after"), strict=True):
        axis.annotate(f"{row['cost']:g}", point, fontsize=8, xytext=(3, 3), textcoords="offset points")
    axis.set(xlim=(0, None), ylim=(0, 1.05), xlabel="lookups an episode", ylabel="held-out success")
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def report(runs: Path, out: Path, origin: dict[str, str]) -> None:
    """Write ``pareto.json``, ``pareto.md`` and ``pareto.svg`` from the runs that have ended."""
    rows = sorted((result_row(path.parent) for path in runs.glob(f"*/{CHANGES}")), key=lambda r: (r["cost"], r["seed"]))
    best = front(rows)
    columns = ("a lookup costs", "seed", "success before", "after", "lookups before", "after", "on the front")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in rows:
        values = (row[name] for name in ("success_before", "success_after", "lookups_before", "lookups_after"))
        cells = " | ".join(f"{value:.2f}" for value in values)
        lines.append(f"| {row['cost']:g} | {row['seed']} | {cells} | {'yes' if row in best else 'no'} |")
    made = f"Made at: machine {origin['machine']}; {origin['date']}; commit {origin['commit']}."
    (out / "pareto.json").write_text(json.dumps({**origin, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    text = "\n".join(lines) + f"\n\n{made}\n"
    (out / "pareto.md").write_text(text + "\n![success against lookups](pareto.svg)\n", encoding="utf-8")
    plot(rows, out / "pareto.svg")
    print(text)


def main() -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["run", "report"])
    parser.add_argument("--costs", type=float, nargs="+", default=[0.0, 0.01, 0.03, 0.1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--change", nargs="*", default=[], metavar="KEY=VALUE", help="of the recipe, in every run")
    parser.add_argument("--runs", type=Path, default=Path("runs/pareto"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder of the results")
    options = parser.parse_args()
    if options.verb == "run":
        for seed in options.seeds:
            for cost in options.costs:
                run_once(cost, seed, options.runs, options.change)
        return
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    machine = f"{platform.machine()}, one thread of a busy machine with two cores"
    report(
        options.runs, options.out, {"machine": machine, "date": date.today().isoformat(), "commit": head.stdout.strip()}
    )


if __name__ == "__main__":
    main()
