"""The rollout simulator compared with measured runs: predictions from the sync run's seconds, and measured seconds.

    python benchmarks/asynchronous/simulate.py --runs runs/asynchronous

Reads the folders that ``compare.py`` left. Turns, engine and training seconds come from the sync run of each seed.
``overlap_slowdown`` is the factor by which ticks and gradients slow each other down on these cores. A run in which they
never overlap does not show it, so it is fitted on async-1 alone, and the other arms are predicted with it.

Predict the schedules of another run with ``benchmarks/simulator/predict.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "simulator"))
from compare import ARMS, LOCK_STEP, add_options, row_of, run_dir_of
from predict import plan_of
from simulator import Plan, simulate
from traces import Recording, read_recording

FITTED_ON = "async-1"
SLOWDOWNS = [1 + 0.05 * at for at in range(61)]


def fit_slowdown(plan: Plan, recording: Recording, measured_s: float) -> float:
    """Return the slowdown at which the simulated plan takes closest to ``measured_s``."""
    return min(SLOWDOWNS, key=lambda s: abs(simulate(replace(plan, overlap_slowdown=s), recording).wall_s - measured_s))


def compare(options: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """Return measured and predicted figures for every arm of a seed."""
    run_dirs = {name: run_dir_of(options.runs, name, seed) for name in ARMS if name != LOCK_STEP}
    recording = read_recording(run_dirs["sync"])
    measured = {name: row_of(name, run_dir, seed) for name, run_dir in run_dirs.items()}
    plans = {name: plan_of(run_dir) for name, run_dir in run_dirs.items()}
    slowdown = fit_slowdown(plans[FITTED_ON], recording, measured[FITTED_ON]["wall_s"])
    assert recording.engine is not None
    rows = []
    for name, plan in plans.items():
        row = {"name": name, "seed": seed, "overlap_slowdown": slowdown, **asdict(recording.engine)}
        for how, factor in (("alone", 1.0), ("fitted", slowdown)):
            found = simulate(replace(plan, overlap_slowdown=factor), recording)
            row[f"{how}_episodes_per_hour"] = found.episodes_per_hour
            row[f"{how}_error"] = found.episodes_per_hour / measured[name]["episodes_per_hour"] - 1
            row[f"{how}_engine_busy_share"] = found.engine_busy_share
            row[f"{how}_waiting_share"] = found.waiting_share
            row[f"{how}_trainer_busy_share"] = found.trainer_busy_share
            row[f"{how}_staleness_mean"] = found.staleness_mean
            row[f"{how}_staleness_max"] = found.staleness_max
        keys = ("episodes_per_hour", "engine_busy_share", "waiting_share", "staleness_mean")
        rows.append(row | {f"measured_{key}": measured[name][key] for key in keys})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return measured and predicted figures as Markdown."""
    lines = [
        "| seed | arm | slowdown | episodes per hour, measured | predicted | error | error without the slowdown "
        "| engine busy, measured / predicted | trainer waiting, measured / predicted | staleness |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        note = " (fitted on)" if row["name"] == FITTED_ON else ""
        lines.append(
            f"| {row['seed']} | {row['name']}{note} | {row['overlap_slowdown']:.2f} "
            f"| {row['measured_episodes_per_hour']:,.0f} "
            f"| {row['fitted_episodes_per_hour']:,.0f} | {row['fitted_error']:+.0%} | {row['alone_error']:+.0%} "
            f"| {row['measured_engine_busy_share']:.0%} / {row['fitted_engine_busy_share']:.0%} "
            f"| {row['measured_waiting_share']:.0%} / {row['fitted_waiting_share']:.0%} "
            f"| {row['measured_staleness_mean']:.2f} / {row['fitted_staleness_mean']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Compare and write ``simulated.json`` and ``simulated.md``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    options = parser.parse_args()
    rows = [row for seed in options.seeds for row in compare(options, seed)]
    (options.out / "simulated.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    text = f"Slowdown fitted on each seed's {FITTED_ON}. {LOCK_STEP} is not simulated.\n\n"
    (options.out / "simulated.md").write_text(text + table(rows) + "\n", encoding="utf-8")
    print(text + table(rows))


if __name__ == "__main__":
    main()
